"""Constant folding in the element type's own arithmetic and rounding.

A rule's docstring states the rule: `c` and `d` are constants of any shape.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Union

import numpy as np

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import product
from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.functions import round_to
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, OpClass, highest, identity, is_elementwise, is_view, lowest
from hemstitch.ir.types import DType, TypeKind
from hemstitch.rewrites.algebra import REDUCTIONS, constant_value, is_constant
from hemstitch.rewrites.engine import Rule, rule

Number = Union[bool, int, float]
Function = Callable[..., Any]

MANTISSA_BITS = {DType.F32: 24, DType.F64: 53}
COMPUTED = tuple(
    op
    for op, row in OPS.items()
    if row.op_class in (OpClass.ELEMENTWISE, OpClass.VIEW, OpClass.REDUCTION)
)
EMPTY_REDUCTIONS = (Op.SUM, Op.PROD, Op.ANY, Op.ALL)
SAME_FOR_EQUALS = (Op.MAX, Op.MIN, Op.ANY, Op.ALL)


# --- the values


def evaluate(node: Node) -> Number | None:
    """The element of an elementwise node on constants; None where the hardware decides it."""
    values = [_element(operand) for operand in node.inputs]
    if node.op is Op.WHERE:
        return values[1] if values[0] else values[2]
    if node.op is Op.CHECK:
        return values[1] if values[0] else None
    source, target = node.inputs[-1].type.dtype, node.type.dtype
    if node.op is Op.CAST:
        return cast(values[0], target)
    with np.errstate(all="ignore"):
        if source.kind is not TypeKind.FLOAT:
            of_integers = _INTEGERS.get(node.op)
            return of_integers(*values, bits=8 * source.bytes) if of_integers else None
        # Of one operand, rounding twice (through f64) is harmless.
        is_single = source is not DType.F64 and len(values) > 1
        number = np.float32 if is_single else np.float64
        result = _FLOATS[node.op](*(number(value) for value in values))
    if result is None or target is DType.BOOL:
        return result if result is None else bool(result)
    return round_to(float(result), target)


def cast(value: Number, target: DType) -> Number | None:
    """`value` converted to `target`; None for a float outside the range of an integer `target`."""
    if target is DType.BOOL:
        return value != 0
    if target.is_float:
        exact = value if isinstance(value, float) else np.int64(value)
        widened = float(exact) if target is DType.F64 else float(np.float32(exact))
        return round_to(widened, target)
    if isinstance(value, float):
        fits = math.isfinite(value) and lowest(target) <= int(value) <= highest(target)
        return int(value) if fits else None
    return int(value)


def _element(node: Node) -> Number:
    value = constant_value(node)
    assert value is not None
    return round_to(value, node.type.dtype) if isinstance(value, float) else value


def _floor_quotient(x: Any, y: Any) -> Any:
    """PyTorch's float floor_divide."""
    if y == 0:
        return x / y
    rest = np.fmod(x, y)
    whole = (x - rest) / y - (rest != 0 and (y < 0) != (rest < 0))
    if whole == 0:
        return np.copysign(whole, x / y)
    floor = np.floor(whole)
    return floor + (whole - floor > 0.5)


def _remainder(x: Any, y: Any) -> Any:
    rest = np.fmod(x, y)
    return rest + y if rest != 0 and (y < 0) != (rest < 0) else rest


_COMPARISONS: dict[Op, Function] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}
_FLOATS: dict[Op, Function] = {
    **{op: row.function for op, row in ELEMENTWISE.items() if TypeKind.FLOAT in row.kinds},
    Op.SIGN: lambda x: None if np.isnan(x) else np.sign(x),
    Op.FLOORDIV: _floor_quotient,
    Op.REMAINDER: _remainder,
    Op.MAXIMUM: lambda a, b: np.where((a < b) | np.isnan(b), b, a),  # of two zeros the first
    Op.MINIMUM: lambda a, b: np.where((a > b) | np.isnan(b), b, a),
}


def _exact(function: Callable[[int, int], int]) -> Function:
    return lambda *values, bits: function(*values)


def _unless_zero(function: Callable[[int, int], int]) -> Function:
    """Undefined for a divisor of 0; only FLOORDIV defines that case."""
    return lambda x, y, bits: None if y == 0 else function(x, y)


def _in_range(function: Callable[[int, int], int]) -> Function:
    return lambda x, y, bits: function(x, y) if 0 <= y < bits else None


def _truncated_quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


_INTEGERS: dict[Op, Function] = {
    **{op: _exact(function) for op, function in _COMPARISONS.items()},
    Op.ISNAN: lambda x, bits: False,
    Op.NEG: lambda x, bits: -x,
    Op.ABS: lambda x, bits: abs(x),
    Op.SIGN: lambda x, bits: (x > 0) - (x < 0),
    Op.NOT: lambda x, bits: not x if isinstance(x, bool) else ~x,
    Op.ADD: _exact(operator.add),
    Op.SUB: _exact(operator.sub),
    Op.MUL: _exact(operator.mul),
    Op.FLOORDIV: lambda x, y, bits: x // y if y else 0,
    Op.TRUNCDIV: _unless_zero(_truncated_quotient),
    Op.FMOD: _unless_zero(lambda x, y: x - y * _truncated_quotient(x, y)),
    Op.REMAINDER: _unless_zero(operator.mod),
    Op.POW: lambda x, y, bits: pow(x, y, 1 << bits) if y >= 0 else None,
    Op.MAXIMUM: _exact(max),
    Op.MINIMUM: _exact(min),
    Op.AND: _exact(operator.and_),
    Op.OR: _exact(operator.or_),
    Op.XOR: _exact(operator.xor),
    Op.SHL: _in_range(operator.lshift),
    Op.SHR: _in_range(operator.rshift),
}


def exact_sum(value: Number, count: int, dtype: DType) -> Number | None:
    """The sum of `count` copies of `value`; None where the order of additions matters."""
    if not isinstance(value, float):
        return value * count
    if not math.isfinite(value) or is_negative_zero(value):
        return None
    numerator = abs(Fraction(value).numerator)
    odd_part = numerator // max(1, numerator & -numerator)
    total = value * count
    is_exact = odd_part * count <= 1 << MANTISSA_BITS[dtype.compute]
    return round_to(total, dtype) if is_exact and abs(total) < 1e38 else None


def is_negative_zero(value: float) -> bool:
    return value == 0 and math.copysign(1, value) < 0


# --- the rules


@rule(*(op for op in Op if is_elementwise(op)))
def of_constants(builder: Builder, node: Node) -> Node | None:
    """c + d -> the constant    and so for all elementwise ops"""
    if any(operand.op is not Op.CONSTANT for operand in node.inputs):
        return None
    value = evaluate(node)
    return None if value is None else builder.constant(value, node.type.dtype, node.shape)


@rule(*(op for op in Op if is_view(op)))
def view_of_constant(builder: Builder, node: Node) -> Node | None:
    """reshape(c) -> c in that shape    pad and concat where all parts are equal"""
    value = constant_value(node.inputs[0])
    if value is None:
        return None
    if all(part is node.inputs[0] or is_constant(part, value) for part in node.inputs):
        return builder.constant(value, node.type.dtype, node.shape)
    return None


@rule(*REDUCTIONS)
def reduction_of_constant(builder: Builder, node: Node) -> Node | None:
    """max(c) -> c, argmax(c) -> 0, sum(c) -> c * size    where that is exact"""
    (x,) = node.inputs
    value = constant_value(x)
    assert isinstance(node.attr, tuple)
    count = product(x.shape[axis] for axis in node.attr if isinstance(axis, int))
    if value is None or not isinstance(count, int) or count == 0:
        return None
    result: Number | None = None
    if node.op in (Op.ARGMAX, Op.ARGMIN):
        result = 0
    elif node.op in SAME_FOR_EQUALS or (node.op is Op.PROD and value == 1):
        result = value
    elif node.op is Op.SUM:
        result = exact_sum(value, count, node.type.dtype)
    return None if result is None else builder.constant(result, node.type.dtype, node.shape)


@rule(*EMPTY_REDUCTIONS)
def reduction_of_nothing(builder: Builder, node: Node) -> Node | None:
    """sum(x, axes of size 0) -> 0, prod -> 1, any -> false, all -> true"""
    (x,) = node.inputs
    assert isinstance(node.attr, tuple)
    if any(isinstance(axis, int) and x.shape[axis] == 0 for axis in node.attr):
        start = identity(node.op, node.type.dtype)
        return builder.constant(start, node.type.dtype, node.shape)
    return None


@rule(*COMPUTED, Op.GATHER)
def empty(builder: Builder, node: Node) -> Node | None:
    """x -> 0    where x has no elements"""
    return builder.constant(0, node.type.dtype, node.shape) if node.type.size == 0 else None


@rule(Op.SCATTER_ADD)
def nothing_added(builder: Builder, node: Node) -> Node | None:
    """scatter_add(x, ...) -> 0    where x has no elements"""
    is_nothing = node.inputs[0].type.size == 0
    return builder.constant(0, node.type.dtype, node.shape) if is_nothing else None


@rule(Op.SIZE)
def known_size(builder: Builder, node: Node) -> Node | None:
    """size(c) -> c"""
    is_known = isinstance(node.attr, int)
    return builder.constant(node.attr, DType.I64) if is_known else None  # type: ignore[arg-type]


@rule(Op.IOTA)
def single_index(builder: Builder, node: Node) -> Node | None:
    """iota along an axis of size 1 -> 0"""
    assert isinstance(node.attr, int)
    is_single = node.shape[node.attr] == 1
    return builder.constant(0, DType.I64, node.shape) if is_single else None


FOLD: tuple[Rule, ...] = (
    empty,
    nothing_added,
    of_constants,
    view_of_constant,
    reduction_of_nothing,
    reduction_of_constant,
    known_size,
    single_index,
)
