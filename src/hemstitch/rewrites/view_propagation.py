"""View simplification: adjacent views merge, identity views vanish, the others move. Slices move
towards the inputs, where they become loads with an offset. Broadcasts move towards the outputs, so
that nothing is computed repeatedly.

A rule's docstring states the rule. The normal order from inputs to outputs is slice, reshape,
permute, broadcast. A reshape passes the others only where it merely adds and drops axes of size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node, Op, Range, toposort, users
from hemstitch.ir.ops import OPS, is_elementwise, is_view
from hemstitch.ir.types import TensorType
from hemstitch.rewrites.algebra import (
    REDUCTIONS,
    constant_value,
    is_constant,
    plus_zero,
)
from hemstitch.rewrites.engine import Rule, rule

ELEMENTWISE = tuple(op for op in Op if is_elementwise(op))
WHOLE = Range(0)
MAX_RECOMPUTED_FLOPS = 8  # per element; the threshold of `OpRow.is_expensive`
Item = TypeVar("Item")


# --- one view of another


@rule(Op.RESHAPE, Op.BROADCAST, Op.PERMUTE, Op.SLICE, Op.PAD, Op.CONCAT)
def identity_view(builder: Builder, node: Node) -> Node | None:
    """permute(x, (0, 1)), reshape(x, its shape), concat(x), ... -> x"""
    x = node.inputs[0]
    if x.type != node.type:
        return None
    match node.op:
        case Op.PERMUTE:
            return x if _integers(node) == tuple(range(x.type.rank)) else None
        case Op.SLICE:
            return x if set(ranges_of(node)) <= {WHOLE} else None
        case Op.CONCAT:
            return x if len(node.inputs) == 1 else None
        case _:
            return x


@rule(Op.RESHAPE)
def reshape_of_reshape(builder: Builder, node: Node) -> Node | None:
    """reshape(reshape(x)) -> reshape(x)"""
    (x,) = node.inputs
    return builder.reshape(x.inputs[0], node.shape) if x.op is Op.RESHAPE else None


@rule(Op.BROADCAST)
def broadcast_of_broadcast(builder: Builder, node: Node) -> Node | None:
    """broadcast(broadcast(x)) -> broadcast(x)"""
    (x,) = node.inputs
    return builder.broadcast(x.inputs[0], node.shape) if x.op is Op.BROADCAST else None


@rule(Op.PERMUTE)
def permute_of_permute(builder: Builder, node: Node) -> Node | None:
    """permute(permute(x, p), q) -> permute(x, p after q)"""
    (x,) = node.inputs
    if x.op is not Op.PERMUTE:
        return None
    inner = _integers(x)
    return builder.permute(x.inputs[0], [inner[axis] for axis in _integers(node)])


@rule(Op.SLICE)
def slice_of_slice(builder: Builder, node: Node) -> Node | None:
    """slice(slice(x)) -> slice(x)"""
    (x,) = node.inputs
    if x.op is not Op.SLICE:
        return None
    ranges = [
        Range(inner.start + outer.start * inner.step, inner.step * outer.step)
        for inner, outer in zip(ranges_of(x), ranges_of(node))
    ]
    return builder.slice(x.inputs[0], ranges, node.shape)


@rule(Op.CONCAT)
def concat_of_concat(builder: Builder, node: Node) -> Node | None:
    """concat(concat(x, y), z) -> concat(x, y, z)    along one axis"""
    parts = [
        inner
        for part in node.inputs
        for inner in (part.inputs if part.op is Op.CONCAT and part.attr == node.attr else (part,))
    ]
    if len(parts) == len(node.inputs):
        return None
    return builder.make(Op.CONCAT, *parts, attr=node.attr, type=node.type)


@rule(Op.CONCAT)
def concat_of_constants(builder: Builder, node: Node) -> Node | None:
    """concat(c, x, c) -> pad(x, c)"""
    variable = [position for position, part in enumerate(node.inputs) if part.op is not Op.CONSTANT]
    if len(variable) != 1 or len(node.inputs) == 1:
        return None
    (position,), axis = variable, node.attr
    assert isinstance(axis, int)
    x, constants = node.inputs[position], _replaced(node.inputs, position)
    fill = constant_value(constants[0])
    before = sum((part.shape[axis] for part in node.inputs[:position]), start=0 * x.shape[axis])
    if fill is None or not isinstance(before, int):
        return None
    if not all(is_constant(c, fill) for c in constants):
        return None
    low = _replaced((0,) * node.type.rank, axis, before)
    return builder.pad(x, low, node.shape, builder.constant(fill, node.type.dtype))


# --- a view moves past another


@rule(Op.PERMUTE)
def permute_of_unit_axes(builder: Builder, node: Node) -> Node | None:
    """permute(x) -> reshape(x)    where only axes of size 1 change their place"""
    (x,) = node.inputs
    moved = [axis for axis in _integers(node) if x.shape[axis] != 1]
    return builder.reshape(x, node.shape) if moved == sorted(moved) else None


@rule(Op.RESHAPE)
def reshape_of_permute(builder: Builder, node: Node) -> Node | None:
    """reshape(permute(x)) -> permute(reshape(x))    where reshape adds or drops axes of size 1"""
    (x,) = node.inputs
    matched = _matched_axes(x.shape, node.shape)
    if x.op is not Op.PERMUTE or matched is None:
        return None
    order = _integers(x)
    source = {new: order[old] for old, new in matched}  # axis of x's operand
    by_source = sorted(source, key=source.__getitem__)
    units = [axis for axis in range(node.type.rank) if axis not in source]
    inner_axes = [*units, *by_source]
    inner = builder.reshape(x.inputs[0], [node.shape[axis] for axis in inner_axes])
    return builder.permute(inner, [inner_axes.index(axis) for axis in range(node.type.rank)])


@rule(Op.RESHAPE)
def reshape_of_broadcast(builder: Builder, node: Node) -> Node | None:
    """reshape(broadcast(x)) -> broadcast(reshape(x))    likewise"""
    (x,) = node.inputs
    matched = _matched_axes(x.shape, node.shape)
    if x.op is not Op.BROADCAST or matched is None:
        return None
    small: list[Dim] = [1] * node.type.rank
    for old, new in matched:
        small[new] = x.inputs[0].shape[old]
    return builder.broadcast(builder.reshape(x.inputs[0], small), node.shape)


@rule(Op.PERMUTE)
def permute_of_broadcast(builder: Builder, node: Node) -> Node | None:
    """permute(broadcast(x)) -> broadcast(permute(x))"""
    (x,) = node.inputs
    if x.op is not Op.BROADCAST:
        return None
    return builder.broadcast(builder.permute(x.inputs[0], _integers(node)), node.shape)


@rule(Op.SLICE)
def slice_of_broadcast(builder: Builder, node: Node) -> Node | None:
    """slice(broadcast(x)) -> broadcast(slice(x))"""
    (x,) = node.inputs
    if x.op is not Op.BROADCAST:
        return None
    source = x.inputs[0]
    ranges, shape = list(ranges_of(node)), list(node.shape)
    for axis, (old, new) in enumerate(zip(source.shape, x.shape)):
        if old != new:
            ranges[axis], shape[axis] = WHOLE, 1
    return builder.broadcast(builder.slice(source, ranges, shape), node.shape)


@rule(Op.SLICE)
def slice_of_permute(builder: Builder, node: Node) -> Node | None:
    """slice(permute(x)) -> permute(slice(x))"""
    (x,) = node.inputs
    if x.op is not Op.PERMUTE:
        return None
    order = _integers(x)
    back = [order.index(axis) for axis in range(len(order))]
    ranges, shape = ranges_of(node), node.shape
    inner = builder.slice(
        x.inputs[0], [ranges[axis] for axis in back], [shape[axis] for axis in back]
    )
    return builder.permute(inner, order)


@rule(Op.SLICE)
def slice_of_reshape(builder: Builder, node: Node) -> Node | None:
    """slice(reshape(x)) -> reshape(slice(x))    where reshape adds or drops axes of size 1"""
    (x,) = node.inputs
    if x.op is not Op.RESHAPE:
        return None
    source = x.inputs[0]
    matched = _matched_axes(source.shape, x.shape)
    if matched is None or any(old == 1 != new for old, new in zip(x.shape, node.shape)):
        return None
    ranges, shape = [WHOLE] * source.type.rank, list(source.shape)
    for old, new in matched:
        ranges[old], shape[old] = ranges_of(node)[new], node.shape[new]
    return builder.reshape(builder.slice(source, ranges, shape), node.shape)


@rule(Op.SLICE)
def slice_of_concat(builder: Builder, node: Node) -> Node | None:
    """slice(concat(x, y)) -> slice(x)    where it lies inside x; other axes: in each part"""
    (x,) = node.inputs
    if x.op is not Op.CONCAT:
        return None
    axis = x.attr
    assert isinstance(axis, int)
    part, length = ranges_of(node)[axis], node.shape[axis]
    if part == WHOLE and length == x.shape[axis]:
        pieces = [
            builder.slice(
                piece,
                ranges_of(node),
                _replaced(node.shape, axis, piece.shape[axis]),
            )
            for piece in x.inputs
        ]
        return builder.make(Op.CONCAT, *pieces, attr=axis, type=node.type)
    before: Dim = 0
    for piece in x.inputs:
        start = part.start - before
        if _lies_inside(Range(start, part.step), length, piece.shape[axis]):
            ranges = _replaced(ranges_of(node), axis, Range(start, part.step))
            return builder.slice(piece, ranges, node.shape)
        before = before + piece.shape[axis]
    return None


@rule(Op.SLICE)
def slice_of_pad(builder: Builder, node: Node) -> Node | None:
    """slice(pad(x)) -> slice(x)    where it lies inside x"""
    (x,) = node.inputs
    if x.op is not Op.PAD:
        return None
    parts = zip(ranges_of(node), _integers(x))
    ranges = [Range(part.start - low, part.step) for part, low in parts]
    source = x.inputs[0]
    if all(map(_lies_inside, ranges, node.shape, source.shape)):
        return builder.slice(source, ranges, node.shape)
    return None


@rule(Op.ADD, Op.CAST)
def sum_of_neighbours(builder: Builder, node: Node) -> Node | None:
    """pad(x) + pad(y) -> pad(concat(x, y))    of zeros, where y begins where x ends

    (z + pad(x)) + pad(y) -> z + pad(concat(x, y)) likewise. The gradient of a tensor that is read
    slice by slice is such a sum. 0.0 is still added to each element. Half types still round each
    sum once, since only zeros are added.
    """
    addends = _addends(node)
    for rest, last in (addends, addends[::-1]) if addends else ():
        if (joined := _joined(builder, rest, last)) is not None:
            return joined
        before = _addends(rest) if rest.op is node.op else None
        for kept, first in (before, before[::-1]) if before else ():
            if (joined := _joined(builder, first, last)) is not None:
                dtype = node.type.dtype
                wide = (builder.cast(addend, dtype.compute) for addend in (kept, joined))
                return builder.cast(builder.make(Op.ADD, *wide), dtype)
    return None


# --- broadcasts move towards the outputs


@rule(*ELEMENTWISE)
def elementwise_of_broadcasts(builder: Builder, node: Node) -> Node | None:
    """broadcast(x) + broadcast(y) -> broadcast(x + y)    along axes that both repeat"""
    small = list(node.shape)
    for axis, size in enumerate(node.shape):
        if size != 1 and all(_repeats(operand, axis) for operand in node.inputs):
            small[axis] = 1
    if small == list(node.shape) or all(x.op is Op.CONSTANT for x in node.inputs):
        return None
    operands = [_shrunk(builder, operand, small) for operand in node.inputs]
    type_ = TensorType(tuple(small), node.type.dtype)
    result = builder.make(node.op, *operands, attr=node.attr, type=type_)
    return builder.broadcast(result, node.shape)


@rule(*REDUCTIONS)
def reduction_of_broadcast(builder: Builder, node: Node) -> Node | None:
    """sum(broadcast(x), axes) -> broadcast(sum(x, axes))    along axes that stay"""
    (x,) = node.inputs
    if x.op is not Op.BROADCAST:
        return None
    axes = _integers(node)
    small = [size if axis in axes else x.inputs[0].shape[axis] for axis, size in enumerate(x.shape)]
    if small == list(x.shape):
        return None
    reduced = builder.reduce(node.op, builder.broadcast(x.inputs[0], small), axes)
    return builder.broadcast(reduced, node.shape)


@rule(Op.MAX, Op.MIN, Op.ANY, Op.ALL)
def extremum_of_broadcast(builder: Builder, node: Node) -> Node | None:
    """max(broadcast(x)) -> max(x)    and so for min, any, all: equals count once"""
    (x,) = node.inputs
    axes = _integers(node)
    if x.op is not Op.BROADCAST:
        return None
    source = x.inputs[0]
    small = list(x.shape)
    for axis in axes:
        size = x.shape[axis]
        if source.shape[axis] == 1 and isinstance(size, int) and size > 0:
            small[axis] = 1
    if small == list(x.shape):
        return None
    return builder.reduce(node.op, builder.broadcast(source, small), axes)


@rule(Op.IOTA)
def iota_of_one_axis(builder: Builder, node: Node) -> Node | None:
    """iota -> broadcast(iota along its one axis)"""
    axis = node.attr
    assert isinstance(axis, int)
    small = [size if position == axis else 1 for position, size in enumerate(node.shape)]
    if small == list(node.shape):
        return None
    return builder.broadcast(builder.iota(small, axis), node.shape)


MERGING: tuple[Rule, ...] = (
    identity_view,
    reshape_of_reshape,
    broadcast_of_broadcast,
    permute_of_permute,
    slice_of_slice,
    concat_of_concat,
    concat_of_constants,
)
MOVING: tuple[Rule, ...] = (
    permute_of_unit_axes,
    reshape_of_permute,
    reshape_of_broadcast,
    permute_of_broadcast,
    slice_of_broadcast,
    slice_of_permute,
    slice_of_reshape,
    slice_of_concat,
    slice_of_pad,
    sum_of_neighbours,
)
SHARING: tuple[Rule, ...] = (
    elementwise_of_broadcasts,
    extremum_of_broadcast,
    reduction_of_broadcast,
    iota_of_one_axis,
)
LAYOUT = (*MERGING, *MOVING, *SHARING)


def slicing(graph: Graph) -> Rule:
    """The rule that moves slices past elementwise operations; `graph` says which values have a
    single reader."""
    readers = users(toposort(graph.roots))
    roots = set(graph.roots)
    single = {node for node, uses in readers.items() if len(uses) == 1} - roots
    costs = _Costs()

    @rule(Op.SLICE)
    def slice_of_elementwise(builder: Builder, node: Node) -> Node | None:
        """slice(x + y) -> slice(x) + slice(y)    where x + y is cheap or nobody else reads it"""
        (x,) = node.inputs
        if not is_elementwise(x.op) or (x not in single and costs.of(x) >= MAX_RECOMPUTED_FLOPS):
            return None
        operands = [builder.slice(operand, ranges_of(node), node.shape) for operand in x.inputs]
        type_ = TensorType(node.shape, x.type.dtype)
        return builder.make(x.op, *operands, attr=x.attr, type=type_)

    return slice_of_elementwise


@dataclass
class _Costs:
    """Flops per element of a value, counted from the values in memory."""

    known: dict[Node, int] = field(default_factory=dict)

    def of(self, node: Node) -> int:
        stack = [node]
        while stack:
            top = stack[-1]
            behind = top.inputs if is_elementwise(top.op) or is_view(top.op) else ()
            pending = [operand for operand in behind if operand not in self.known]
            if pending and top not in self.known:
                stack.extend(pending)
                continue
            stack.pop()
            self.known[top] = _own_cost(top) + sum(self.known[operand] for operand in behind)
        return self.known[node]


def _own_cost(node: Node) -> int:
    """Flops per element; a reduction is never recomputed for a slice of its result."""
    return MAX_RECOMPUTED_FLOPS if node.op in REDUCTIONS else OPS[node.op].flops


# --- helpers


def _integers(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attr, tuple)
    return tuple(value for value in node.attr if isinstance(value, int))


def ranges_of(node: Node) -> tuple[Range, ...]:
    assert isinstance(node.attr, tuple)
    return tuple(part for part in node.attr if isinstance(part, Range))


def _replaced(items: tuple[Item, ...], index: int, *by: Item) -> tuple[Item, ...]:
    return (*items[:index], *by, *items[index + 1 :])


def _matched_axes(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[int, int]] | None:
    """Pairs of axes where `new` is `old` with axes of size 1 added or dropped; else None."""
    before = [axis for axis, size in enumerate(old) if size != 1]
    after = [axis for axis, size in enumerate(new) if size != 1]
    same = [old[axis] for axis in before] == [new[axis] for axis in after]
    return list(zip(before, after)) if same else None


def _lies_inside(part: Range, length: Dim, size: Dim) -> bool:
    """Whether `length` elements of `part` are within `size` for all values of the symbols."""
    last = part.start + (length - 1) * part.step
    low, high = (part.start, last) if part.step > 0 else (last, part.start)
    above = size - 1 - high
    return isinstance(low, int) and low >= 0 and isinstance(above, int) and above >= 0


def _addends(node: Node) -> tuple[Node, ...] | None:
    """The operands of a sum; also of a sum of half types that is computed in f32 and rounded."""
    if node.op is Op.ADD:
        return node.inputs
    if node.op is not Op.CAST or node.inputs[0].op is not Op.ADD:
        return None
    narrow, total = node.type.dtype, node.inputs[0]
    are_narrow = (x.op is Op.CAST and x.inputs[0].type.dtype is narrow for x in total.inputs)
    if narrow.compute is not total.type.dtype or not all(are_narrow):
        return None
    return tuple(x.inputs[0] for x in total.inputs)


def _joined(builder: Builder, x: Node, y: Node) -> Node | None:
    """One pad for the sum of two: both pad with zeros, and they are adjacent along one axis. Else
    None."""
    if x.op is not Op.PAD or y.op is not Op.PAD or not (_pads_zeros(x) and _pads_zeros(y)):
        return None
    if _integers(x) > _integers(y):
        x, y = y, x
    low, high = _integers(x), _integers(y)
    axes = [axis for axis, (first, second) in enumerate(zip(low, high)) if first != second]
    if len(axes) != 1:
        return None
    (axis,), first, second = axes, x.inputs[0], y.inputs[0]
    is_flush = _replaced(first.shape, axis) == _replaced(second.shape, axis)
    if not is_flush or low[axis] + first.shape[axis] != high[axis]:
        return None
    parts = [_beside_zeros(builder, part) for part in (first, second)]
    return builder.pad(builder.concat(parts, axis), low, x.shape, x.inputs[1])


def _beside_zeros(builder: Builder, x: Node) -> Node:
    dtype = x.type.dtype
    return builder.cast(plus_zero(builder, builder.cast(x, dtype.compute)), dtype)


def _pads_zeros(node: Node) -> bool:
    fill = node.inputs[1]
    return fill.op is Op.CONSTANT and fill.attr == 0


def _repeats(node: Node, axis: int) -> bool:
    """Whether all elements along `axis`, which is longer than 1, are equal."""
    return node.op is Op.CONSTANT or (node.op is Op.BROADCAST and node.inputs[0].shape[axis] == 1)


def _shrunk(builder: Builder, node: Node, shape: Sequence[Dim]) -> Node:
    if node.op is Op.BROADCAST:
        return builder.broadcast(node.inputs[0], shape)
    type_ = TensorType(tuple(shape), node.type.dtype)
    return builder.make(Op.CONSTANT, attr=node.attr, type=type_)
