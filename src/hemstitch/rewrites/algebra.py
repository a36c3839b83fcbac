"""Arithmetic identities that preserve every result, except the sign and payload of a NaN.

A rule's docstring states the rule: `c` and `d` are constants, `i` is an integer, `b` a bool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_reduction
from hemstitch.ir.types import DType, TypeKind
from hemstitch.rewrites.engine import Rule, rule

COMMUTATIVE = (Op.ADD, Op.MUL, Op.AND, Op.OR, Op.XOR, Op.EQ, Op.NE)
ROUNDINGS = (Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC)
SELECTIONS = (Op.WHERE, Op.MAXIMUM, Op.MINIMUM)  # of one of the last two operands
REDUCTIONS = tuple(op for op in Op if is_reduction(op))
MIRRORED = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}
SMALLEST_NORMAL = {
    DType.F16: 2.0**-14,
    DType.BF16: 2.0**-126,
    DType.F32: 2.0**-126,
    DType.F64: 2.0**-1022,
}
# The types that represent every value of the key exactly.
WIDER: dict[DType, tuple[DType, ...]] = {
    DType.BOOL: tuple(dtype for dtype in DType if dtype not in (DType.BOOL, DType.OPAQUE)),
    DType.U8: (*(DType.I16, DType.I32, DType.I64), *(d for d in DType if d.is_float)),
    DType.I8: (*(DType.I16, DType.I32, DType.I64), *(d for d in DType if d.is_float)),
    DType.I16: (DType.I32, DType.I64, DType.F32, DType.F64),
    DType.I32: (DType.I64, DType.F64),
    DType.I64: (),
    DType.F16: (DType.F32, DType.F64),
    DType.BF16: (DType.F32, DType.F64),
    DType.F32: (DType.F64,),
    DType.F64: (),
    DType.OPAQUE: (),
}
NEUTRAL: dict[tuple[Op, TypeKind], bool | int | float] = {
    (Op.ADD, TypeKind.FLOAT): -0.0,
    (Op.ADD, TypeKind.INT): 0,
    (Op.SUB, TypeKind.FLOAT): 0.0,
    (Op.SUB, TypeKind.INT): 0,
    (Op.MUL, TypeKind.FLOAT): 1.0,
    (Op.MUL, TypeKind.INT): 1,
    (Op.DIV, TypeKind.FLOAT): 1.0,
    (Op.FLOORDIV, TypeKind.INT): 1,
    (Op.TRUNCDIV, TypeKind.INT): 1,
    (Op.POW, TypeKind.FLOAT): 1.0,
    (Op.POW, TypeKind.INT): 1,
    (Op.AND, TypeKind.BOOL): True,
    (Op.AND, TypeKind.INT): -1,
    (Op.OR, TypeKind.BOOL): False,
    (Op.OR, TypeKind.INT): 0,
    (Op.XOR, TypeKind.BOOL): False,
    (Op.XOR, TypeKind.INT): 0,
    (Op.SHL, TypeKind.INT): 0,
    (Op.SHR, TypeKind.INT): 0,
    (Op.MAXIMUM, TypeKind.FLOAT): -math.inf,
    (Op.MINIMUM, TypeKind.FLOAT): math.inf,
}
ABSORBING: dict[tuple[Op, TypeKind], bool | int] = {
    (Op.MUL, TypeKind.INT): 0,
    (Op.AND, TypeKind.BOOL): False,
    (Op.AND, TypeKind.INT): 0,
    (Op.OR, TypeKind.BOOL): True,
    (Op.OR, TypeKind.INT): -1,
}


def is_constant(node: Node, value: bool | int | float | None) -> bool:
    """Whether `node` is a constant with every element equal to `value`; 0.0 differs from -0.0."""
    element = constant_value(node)
    if element is None or value is None or element != value:
        return False
    return math.copysign(1, element) == math.copysign(1, value)


def constant_value(node: Node) -> bool | int | float | None:
    """The number of a CONSTANT node; None for any other node."""
    is_number = node.op is Op.CONSTANT and isinstance(node.attr, (bool, int, float))
    return node.attr if is_number else None  # type: ignore[return-value]


def _kind(node: Node) -> TypeKind:
    return node.type.dtype.kind


def _unsigned(value: bool | int | float | None, dtype: DType) -> bool | int | float | None:
    return 255 if dtype is DType.U8 and value == -1 else value


# --- order, neutral and absorbing elements


@rule(*COMMUTATIVE)
def constant_last(builder: Builder, node: Node) -> Node | None:
    """c + x -> x + c    and so for *, and, or, xor, ==, !="""
    x, y = node.inputs
    if x.op is Op.CONSTANT and y.op is not Op.CONSTANT:
        return builder.make(node.op, y, x)
    return None


@rule(*MIRRORED)
def mirrored_comparison(builder: Builder, node: Node) -> Node | None:
    """c < x -> x > c    and so for <=, >, >="""
    x, y = node.inputs
    if x.op is Op.CONSTANT and y.op is not Op.CONSTANT:
        return builder.make(MIRRORED[node.op], y, x)
    return None


@rule(*{op for op, _ in NEUTRAL})
def neutral_element(builder: Builder, node: Node) -> Node | None:
    """x + -0.0, x - 0.0, x * 1, x / 1, x ** 1, b and true, max(x, -inf), ... -> x"""
    x, y = node.inputs
    neutral = _unsigned(NEUTRAL.get((node.op, _kind(node))), node.type.dtype)
    return x if is_constant(y, neutral) else None


@rule(*{op for op, _ in ABSORBING})
def absorbing_element(builder: Builder, node: Node) -> Node | None:
    """i * 0 -> 0, b and false -> false, b or true -> true    x * 0 is NaN for an infinite x"""
    _, y = node.inputs
    absorbing = _unsigned(ABSORBING.get((node.op, _kind(node))), node.type.dtype)
    return y if is_constant(y, absorbing) else None


@rule(Op.AND, Op.OR, Op.MAXIMUM, Op.MINIMUM)
def idempotent(builder: Builder, node: Node) -> Node | None:
    """max(x, x), min(x, x), x and x, x or x -> x"""
    x, y = node.inputs
    return x if x is y else None


@rule(Op.SUB, Op.XOR)
def cancels(builder: Builder, node: Node) -> Node | None:
    """i - i, i xor i -> 0    x - x is NaN for an infinite x"""
    x, y = node.inputs
    if x is y and _kind(node) is not TypeKind.FLOAT:
        return builder.constant(0, node.type.dtype, node.shape)
    return None


ZERO_FOR_BOOL: Mapping[Op, Callable[[int], bool]] = MappingProxyType(
    {
        Op.TRUNCDIV: lambda c: abs(c) > 1,
        Op.FLOORDIV: lambda c: c > 1,
        Op.SHR: lambda c: c > 0,
        Op.AND: lambda c: c % 2 == 0,
    }
)


@rule(*ZERO_FOR_BOOL)
def zero_for_bool(builder: Builder, node: Node) -> Node | None:
    """i(b) / 2, i(b) >> 1, i(b) and 2 -> 0    LLVM 20 miscompiles such a zero divided by f(b) with
    AVX-512: it gives 0 where b is false"""
    x, c = node.inputs
    if x.op is not Op.CAST or x.inputs[0].type.dtype is not DType.BOOL or c.op is not Op.CONSTANT:
        return None
    if not isinstance(c.attr, int) or not ZERO_FOR_BOOL[node.op](c.attr):
        return None
    return builder.constant(0, node.type.dtype, node.shape)


@rule(Op.ADD, Op.MUL, Op.AND, Op.OR, Op.XOR, Op.MAXIMUM, Op.MINIMUM)
def constants_together(builder: Builder, node: Node) -> Node | None:
    """(i + c) + d -> i + (c + d)    and so for *, and, or, xor; max and min also of floats"""
    inner, d = node.inputs
    if inner.op is not node.op or d.op is not Op.CONSTANT:
        return None
    x, c = inner.inputs
    is_exact = _kind(node) is not TypeKind.FLOAT or node.op in (Op.MAXIMUM, Op.MINIMUM)
    if c.op is not Op.CONSTANT or x.op is Op.CONSTANT or not is_exact:
        return None
    if c.attr == d.attr == 0 and c is not d:
        return None  # the order of 0.0 and -0.0 is unspecified
    return builder.make(node.op, x, builder.make(node.op, c, d))


# --- signs


@rule(Op.NEG)
def double_negation(builder: Builder, node: Node) -> Node | None:
    """-(-x) -> x"""
    (x,) = node.inputs
    return x.inputs[0] if x.op is Op.NEG else None


@rule(Op.ABS)
def absolute_of_signed(builder: Builder, node: Node) -> Node | None:
    """|-x|, ||x|| -> |x|    an unsigned -x is no less than 0"""
    (x,) = node.inputs
    if x.op is Op.ABS:
        return x
    is_signed = node.type.dtype is not DType.U8
    return builder.make(Op.ABS, x.inputs[0]) if is_signed and x.op is Op.NEG else None


@rule(Op.ADD)
def plus_negative(builder: Builder, node: Node) -> Node | None:
    """x + -y -> x - y,    -x + y -> y - x"""
    x, y = node.inputs
    if y.op is Op.NEG:
        return builder.make(Op.SUB, x, y.inputs[0])
    return builder.make(Op.SUB, y, x.inputs[0]) if x.op is Op.NEG else None


@rule(Op.SUB)
def minus_negative(builder: Builder, node: Node) -> Node | None:
    """x - -y -> x + y"""
    x, y = node.inputs
    return builder.make(Op.ADD, x, y.inputs[0]) if y.op is Op.NEG else None


@rule(Op.SUB)
def minus_integer(builder: Builder, node: Node) -> Node | None:
    """i - c -> i + -c"""
    x, y = node.inputs
    if _kind(node) is TypeKind.INT and y.op is Op.CONSTANT:
        return builder.make(Op.ADD, x, builder.make(Op.NEG, y))
    return None


@rule(Op.MUL, Op.DIV)
def signs_cancel(builder: Builder, node: Node) -> Node | None:
    """-x * -y -> x * y,    -x / -y -> x / y"""
    x, y = node.inputs
    if x.op is Op.NEG and y.op is Op.NEG:
        return builder.make(node.op, x.inputs[0], y.inputs[0])
    return None


@rule(Op.MUL)
def times_minus_one(builder: Builder, node: Node) -> Node | None:
    """x * -1 -> -x"""
    x, y = node.inputs
    is_signed = node.type.dtype is not DType.U8
    return builder.make(Op.NEG, x) if is_signed and is_constant(y, -1) else None


# --- powers and quotients


@rule(Op.POW)
def small_power(builder: Builder, node: Node) -> Node | None:
    """x ** 0 -> 1,    x ** 2 -> x * x,    x ** -1 -> 1 / x,    i ** 3 -> i * i * i"""
    x, y = node.inputs
    exponent = constant_value(y)
    if exponent == 0:
        return builder.constant(1, node.type.dtype, node.shape)
    if exponent == -1 and _kind(node) is TypeKind.FLOAT:
        return builder.make(Op.RECIPROCAL, x)
    if exponent == 2 or (exponent == 3 and _kind(node) is TypeKind.INT):
        square = builder.make(Op.MUL, x, x)
        return square if exponent == 2 else builder.make(Op.MUL, square, x)
    return None


@rule(Op.DIV)
def divided_by_power_of_two(builder: Builder, node: Node) -> Node | None:
    """x / 2**k -> x * 2**-k    where that is a normal number"""
    x, y = node.inputs
    divisor = constant_value(y)
    if divisor is None or not math.isfinite(divisor) or abs(math.frexp(divisor)[0]) != 0.5:
        return None
    if not SMALLEST_NORMAL[node.type.dtype] <= abs(1 / divisor) <= 2.0**14:
        return None
    return builder.make(Op.MUL, x, builder.constant(1 / divisor, node.type.dtype, node.shape))


@rule(Op.DIV)
def one_divided(builder: Builder, node: Node) -> Node | None:
    """1 / x -> reciprocal(x)"""
    x, y = node.inputs
    return builder.make(Op.RECIPROCAL, y) if is_constant(x, 1) else None


@rule(Op.RECIPROCAL)
def reciprocal_of_root(builder: Builder, node: Node) -> Node | None:
    """1 / sqrt(x) -> rsqrt(x)"""
    (x,) = node.inputs
    return builder.make(Op.RSQRT, x.inputs[0]) if x.op is Op.SQRT else None


@rule(*ROUNDINGS)
def rounded_twice(builder: Builder, node: Node) -> Node | None:
    """floor(ceil(x)) -> ceil(x)    and so for any two of floor, ceil, round, trunc"""
    (x,) = node.inputs
    return x if x.op in ROUNDINGS else None


# --- casts


@rule(Op.CAST)
def cast_to_same(builder: Builder, node: Node) -> Node | None:
    """x as its own type -> x"""
    (x,) = node.inputs
    return x if x.type == node.type else None


@rule(Op.CAST)
def cast_chain(builder: Builder, node: Node) -> Node | None:
    """(x as T) as U -> x as U    where T holds every x, or both wrap an integer"""
    (middle,) = node.inputs
    if middle.op is not Op.CAST:
        return None
    (x,) = middle.inputs
    first, second, third = x.type.dtype, middle.type.dtype, node.type.dtype
    only_integers = {first.kind, second.kind, third.kind} == {TypeKind.INT}
    if second in WIDER[first] or (only_integers and third.bytes <= second.bytes):
        return builder.cast(x, third)
    return None


@rule(Op.CAST)
def cast_of_chosen(builder: Builder, node: Node) -> Node | None:
    """(where(b, x, y) as T) as U -> where(b, x, y)    of values of T; also maximum, minimum"""
    (middle,) = node.inputs
    if middle.op is not Op.CAST or node.type.dtype not in WIDER[middle.type.dtype]:
        return None
    (x,) = middle.inputs
    is_chosen = x.type == node.type and x.op in SELECTIONS and _is_value_of(middle.type.dtype, x)
    return x if is_chosen else None


def _is_value_of(dtype: DType, node: Node) -> bool:
    """Whether a cast of `node` to `dtype` is exact for every element."""
    pending, visited = [node], {node}
    while pending:
        operand = pending.pop()
        if operand.op in SELECTIONS:
            unvisited = dict.fromkeys(x for x in operand.inputs[-2:] if x not in visited)
            visited.update(unvisited)
            pending += unvisited
        elif not (is_constant(operand, 0) or _is_cast_from(dtype, operand)):
            return False
    return True


def _is_cast_from(dtype: DType, node: Node) -> bool:
    return node.op is Op.CAST and node.inputs[0].type.dtype is dtype


# --- reductions


@rule(*REDUCTIONS)
def reduces_nothing(builder: Builder, node: Node) -> Node | None:
    """sum(x, axes of size 1) -> reshape(x) + 0.0    others add nothing; argmax gives 0; other axes
    stay"""
    (x,) = node.inputs
    assert isinstance(node.attr, tuple)
    axes = [axis for axis in node.attr if isinstance(axis, int) and x.shape[axis] != 1]
    if len(axes) == len(node.attr) > 0:
        return None
    if axes:
        dropped = set(node.attr) - set(axes)
        remaining = [axis for axis in range(x.type.rank) if axis not in dropped]
        small = builder.reshape(x, [x.shape[axis] for axis in remaining])
        return builder.reduce(node.op, small, [remaining.index(axis) for axis in axes])
    if node.op in (Op.ARGMAX, Op.ARGMIN):
        return builder.constant(0, node.type.dtype, node.shape)
    reshaped = builder.reshape(x, node.shape)
    return plus_zero(builder, reshaped) if node.op is Op.SUM else reshaped


def plus_zero(builder: Builder, x: Node) -> Node:
    """x + 0.0: turns -0.0 into 0.0, as a SUM does, which starts from 0.0."""
    if _kind(x) is not TypeKind.FLOAT or _has_no_negative_zero(x):
        return x
    return builder.make(Op.ADD, x, builder.constant(0.0, x.type.dtype, x.shape))


def _has_no_negative_zero(x: Node) -> bool:
    """Whether no element of `x` can be -0.0."""
    while x.op in (Op.RESHAPE, Op.PERMUTE, Op.BROADCAST, Op.SLICE):
        (x,) = x.inputs
    if x.op is Op.CONCAT:
        return all(map(_has_no_negative_zero, x.inputs))
    if x.op is Op.CAST:
        return _kind(x.inputs[0]) is not TypeKind.FLOAT or _has_no_negative_zero(x.inputs[0])
    return x.op in (Op.SUM, Op.ABS, Op.EXP) or (x.op is Op.ADD and is_constant(x.inputs[1], 0.0))


@rule(Op.MAX, Op.MIN, Op.ANY, Op.ALL, Op.SUM, Op.PROD)
def reduced_twice(builder: Builder, node: Node) -> Node | None:
    """max(max(x, first), then) -> max(x, both)    and so for min, any, all, integer sum, prod"""
    (inner,) = node.inputs
    is_exact = node.op not in (Op.SUM, Op.PROD) or _kind(node) is TypeKind.INT
    if inner.op is not node.op or not is_exact:
        return None
    (x,) = inner.inputs
    assert isinstance(inner.attr, tuple) and isinstance(node.attr, tuple)
    first = [axis for axis in inner.attr if isinstance(axis, int)]
    remaining = [axis for axis in range(x.type.rank) if axis not in first]
    then = [remaining[axis] for axis in node.attr if isinstance(axis, int)]
    return builder.reduce(node.op, x, [*first, *then])


ALGEBRA: tuple[Rule, ...] = (
    constant_last,
    mirrored_comparison,
    neutral_element,
    absorbing_element,
    idempotent,
    cancels,
    zero_for_bool,
    constants_together,
    double_negation,
    absolute_of_signed,
    plus_negative,
    minus_negative,
    minus_integer,
    signs_cancel,
    times_minus_one,
    small_power,
    divided_by_power_of_two,
    one_divided,
    reciprocal_of_root,
    rounded_twice,
    cast_to_same,
    cast_chain,
    cast_of_chosen,
    reduces_nothing,
    reduced_twice,
)
