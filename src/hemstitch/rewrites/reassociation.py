"""Identities of real numbers that floats satisfy only up to rounding, and not for infinities
(option `reassociate`). They are meant for training: the gradient of softmax and cross entropy loses
its sum, its logarithm and its second exponential (EVT 2024, section 4.1, "reduction elimination").

A rule's docstring states the rule: `c` is a constant, `k` does not vary along the axes of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hemstitch.exactness import FINITE
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import product
from hemstitch.ir.graph import Graph, Node, Op, toposort, users
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType, TensorType
from hemstitch.rewrites.algebra import constant_value, is_constant
from hemstitch.rewrites.engine import Rule, rule

MAX_DEPTH = 12  # operations below a sum that the rule looks through


# --- sums with a closed form


@rule(Op.SUM, exactness=FINITE)
def known_sum(builder: Builder, node: Node) -> Node | None:
    """sum(one_hot * k) -> k,    sum(softmax) -> 1,    sum(k) -> n * k    and their combinations by
    +, -, *, /; only where no sum is left"""
    (x,) = node.inputs
    return _total(builder, x, _axes(node), MAX_DEPTH) if node.type.dtype.is_float else None


def _total(builder: Builder, x: Node, axes: Sequence[int], depth: int) -> Node | None:
    """The sum of `x` over `axes` as an expression without a sum; None where there is none."""
    if depth == 0:
        return None
    closed_form = _sum_of_invariant(builder, x, axes) or _sum_of_softmax(builder, x, axes)
    rule = _BY_OP.get(x.op)
    if closed_form is not None or rule is None:
        return closed_form
    return rule(builder, x, axes, depth - 1)


def _sum_of_invariant(builder: Builder, x: Node, axes: Sequence[int]) -> Node | None:
    fixed = _invariant(builder, x, axes)
    count = product(tuple(x.shape[axis] for axis in axes))
    return _times(builder, fixed, count) if fixed is not None and isinstance(count, int) else None


def _sum_of_softmax(builder: Builder, x: Node, axes: Sequence[int]) -> Node | None:
    shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return builder.constant(1, x.type.dtype, shape) if _is_softmax(builder, x, axes) else None


def _sum_of_terms(builder: Builder, x: Node, axes: Sequence[int], depth: int) -> Node | None:
    """sum(x + y) -> sum(x) + sum(y),    sum(-x) -> -sum(x)"""
    parts = [_total(builder, y, axes, depth) for y in x.inputs]
    known = [part for part in parts if part is not None]
    return builder.make(x.op, *known) if len(known) == len(parts) else None


def _times(builder: Builder, x: Node, count: int) -> Node:
    return builder.make(Op.MUL, x, builder.constant(count, x.type.dtype, x.shape))


def _sum_of_scaled(builder: Builder, x: Node, axes: Sequence[int], depth: int) -> Node | None:
    """sum(y * k) -> sum(y) * k,    sum(k * y) -> sum(y) * k,    sum(y / k) -> sum(y) / k"""
    pairs = [x.inputs] if x.op is Op.DIV else [x.inputs, x.inputs[::-1]]
    for varying, factor in pairs:
        scale = _invariant(builder, factor, axes)
        if scale is None:
            continue
        inner = _total(builder, varying, axes, depth)
        if inner is not None:
            return builder.make(x.op, inner, scale)
    return None


def _sum_of_selected(builder: Builder, x: Node, axes: Sequence[int], _: int) -> Node | None:
    """sum over i of where(i == k, m, 0) -> where(0 <= k < n, m, 0)"""
    condition, yes, no = x.inputs
    if condition.op is Op.NE:
        yes, no = no, yes
    if len(axes) != 1 or condition.op not in (Op.EQ, Op.NE) or constant_value(no) != 0:
        return None
    chosen = _invariant(builder, yes, axes)
    for counter, index in (condition.inputs, condition.inputs[::-1]):
        target = _invariant(builder, index, axes)
        if chosen is None or target is None or not _is_iota(counter, axes[0]):
            continue
        low = builder.constant(0, target.type.dtype, target.shape)
        high = builder.broadcast(_size(builder, x, axes[0], target.type.dtype), target.shape)
        is_inside = builder.make(
            Op.AND, builder.make(Op.GE, target, low), builder.make(Op.LT, target, high)
        )
        zero = builder.constant(0, chosen.type.dtype, chosen.shape)
        return builder.make(Op.WHERE, is_inside, chosen, zero)
    return None


_BY_OP: Mapping[Op, Callable[[Builder, Node, Sequence[int], int], Node | None]] = MappingProxyType(
    {
        **dict.fromkeys((Op.ADD, Op.SUB, Op.NEG), _sum_of_terms),
        **dict.fromkeys((Op.MUL, Op.DIV), _sum_of_scaled),
        Op.WHERE: _sum_of_selected,
    }
)


def _size(builder: Builder, x: Node, axis: int, dtype: DType) -> Node:
    size = x.shape[axis]
    if isinstance(size, int):
        return builder.constant(size, dtype)
    return builder.cast(builder.size(size), dtype)


def _is_iota(x: Node, axis: int) -> bool:
    """Whether `x` is 0, 1, 2, ... along the axis."""
    while x.op is Op.BROADCAST and x.inputs[0].shape[axis] == x.shape[axis]:
        x = x.inputs[0]
    return x.op is Op.IOTA and x.attr == axis


def _is_softmax(builder: Builder, x: Node, axes: Sequence[int]) -> bool:
    """e / sum(e),    e * (1 / sum(e)),    exp(y - log(sum(exp(y))))"""
    if x.op is Op.DIV:
        return _is_sum(_row_value(builder, x.inputs[1], axes), x.inputs[0], axes)
    if x.op is Op.MUL:
        return any(
            _is_sum(_operand(_row_value(builder, inverse, axes), Op.RECIPROCAL), e, axes)
            for e, inverse in (x.inputs, x.inputs[::-1])
        )
    if x.op is not Op.EXP or x.inputs[0].op is not Op.SUB:
        return False
    y, logarithm = x.inputs[0].inputs
    total = _operand(_row_value(builder, logarithm, axes), Op.LOG)
    return _is_sum(total, builder.make(Op.EXP, y), axes)


def _is_sum(total: Node | None, of: Node, axes: Sequence[int]) -> bool:
    if total is None or total.op is not Op.SUM:
        return False
    return total.inputs[0] is of and _axes(total) == tuple(axes)


def _row_value(builder: Builder, x: Node, axes: Sequence[int]) -> Node | None:
    """`x` with one element per row, where it does not vary along `axes`; reshapes removed."""
    fixed = _invariant(builder, x, axes)
    return None if fixed is None else _unshaped(fixed)


def _operand(x: Node | None, op: Op) -> Node | None:
    return _unshaped(x.inputs[0]) if x is not None and x.op is op else None


def _unshaped(x: Node) -> Node:
    while x.op is Op.RESHAPE:
        x = x.inputs[0]
    return x


def _invariant(builder: Builder, x: Node, axes: Sequence[int]) -> Node | None:
    """`x` without `axes`, where it does not vary along them; else None."""
    return _without_axes(builder, x, axes, {})


def _without_axes(
    builder: Builder, x: Node, axes: Sequence[int], known: dict[Node, Node | None]
) -> Node | None:
    """As `_invariant`; `known` memoises the results, since several nodes may read `x`."""
    if x not in known:
        known[x] = _computed_without_axes(builder, x, axes, known)
    return known[x]


def _computed_without_axes(
    builder: Builder, x: Node, axes: Sequence[int], known: dict[Node, Node | None]
) -> Node | None:
    shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    if all(x.shape[axis] == 1 for axis in axes):
        return builder.reshape(x, shape)
    if x.op is Op.CONSTANT:
        return builder.make(Op.CONSTANT, attr=x.attr, type=TensorType(tuple(shape), x.type.dtype))
    if x.op is Op.BROADCAST and all(x.inputs[0].shape[axis] == 1 for axis in axes):
        small = [size for axis, size in enumerate(x.inputs[0].shape) if axis not in axes]
        return builder.broadcast(builder.reshape(x.inputs[0], small), shape)
    if not is_elementwise(x.op):
        return None
    operands: list[Node] = []
    for operand in x.inputs:
        without = _without_axes(builder, operand, axes, known)
        if without is None:
            return None
        operands.append(without)
    return builder.make(x.op, *operands, attr=x.attr, type=TensorType(tuple(shape), x.type.dtype))


def _axes(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attr, tuple)
    return tuple(axis for axis in node.attr if isinstance(axis, int))


# --- fewer expensive operations


@rule(Op.EXP, exactness=FINITE)
def exponential_of_logarithm(builder: Builder, node: Node) -> Node | None:
    """exp(x - log(y)) -> exp(x) * (1 / y)    softmax from its logarithm"""
    (difference,) = node.inputs
    if difference.op is not Op.SUB:
        return None
    x, logarithm = difference.inputs
    inverse = _inverse_of_logarithm(builder, logarithm)
    return None if inverse is None else builder.make(Op.MUL, builder.make(Op.EXP, x), inverse)


def _inverse_of_logarithm(builder: Builder, x: Node) -> Node | None:
    """1 / y for log(y), through views."""
    if x.op is Op.LOG:
        return builder.make(Op.RECIPROCAL, x.inputs[0])
    if x.op not in (Op.BROADCAST, Op.RESHAPE):
        return None
    inner = _inverse_of_logarithm(builder, x.inputs[0])
    return None if inner is None else builder.make(x.op, inner, type=x.type)


@rule(Op.DIV, exactness=FINITE)
def divided_by_constant(builder: Builder, node: Node) -> Node | None:
    """x / c -> x * (1 / c)"""
    x, y = node.inputs
    divisor = constant_value(y)
    if not node.type.dtype.is_float or divisor is None or is_constant(y, 1):
        return None
    if not 2.0**-100 < abs(divisor) < 2.0**100:
        return None
    inverse = builder.constant(1 / divisor, node.type.dtype, node.shape)
    return builder.make(Op.MUL, x, inverse)


@rule(Op.MUL, exactness=FINITE)
def constant_factors_together(builder: Builder, node: Node) -> Node | None:
    """(x * c) * d -> x * (c * d)"""
    inner, d = node.inputs
    if inner.op is not Op.MUL or d.op is not Op.CONSTANT or not node.type.dtype.is_float:
        return None
    x, c = inner.inputs
    first, second = constant_value(c), constant_value(d)
    if first is None or second is None:
        return None
    return builder.make(Op.MUL, x, builder.constant(first * second, node.type.dtype, node.shape))


def common_factor(graph: Graph) -> Rule:
    """The rule for `graph`: it needs products with a single reader."""
    readers, results = users(toposort(graph.roots)), {output.value for output in graph.outputs}

    @rule(Op.ADD, Op.SUB, exactness=FINITE)
    def factored(builder: Builder, node: Node) -> Node | None:
        """x * z + y * z -> (x + y) * z    and so for -"""
        first, second = node.inputs
        if first.op is not Op.MUL or second.op is not Op.MUL or not node.type.dtype.is_float:
            return None
        if any(len(readers.get(x, ())) != 1 or x in results for x in (first, second)):
            return None
        for x, z in (first.inputs, first.inputs[::-1]):
            for y, factor in (second.inputs, second.inputs[::-1]):
                if z is factor:
                    return builder.make(Op.MUL, builder.make(node.op, x, y), z)
        return None

    return factored


REASSOCIATE: tuple[Rule, ...] = (
    known_sum,
    exponential_of_logarithm,
    divided_by_constant,
    constant_factors_together,
)
