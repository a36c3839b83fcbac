"""Reductions over vectors: what a masked-off lane holds, joining two vectors, joining the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hemstitch.codegen.llvm.arithmetic import any_lane, is_nan
from hemstitch.codegen.llvm.elementwise import apply
from hemstitch.codegen.llvm.emitter import Emitter, Value, literal
from hemstitch.ir.graph import Op
from hemstitch.ir.ops import identity
from hemstitch.ir.types import DType

Pair = tuple[Value, Value]  # (value, i64 index)

_JOIN: Mapping[Op, Op] = MappingProxyType(
    {
        Op.SUM: Op.ADD,
        Op.PROD: Op.MUL,
        Op.MAX: Op.MAXIMUM,
        Op.MIN: Op.MINIMUM,
        Op.ANY: Op.OR,
        Op.ALL: Op.AND,
    }
)


@dataclass(slots=True)
class Accumulator:
    """Running values, one for each copy of the loop body in flight; pairs for ARGMAX."""

    op: Op
    dtype: DType
    across: bool
    copies: list[tuple[Value, ...]]


def combine(e: Emitter, op: Op, dtype: DType, a: Value, b: Value) -> Value:
    """Lane by lane. Works on vectors of any length and on scalars."""
    return apply(e, _JOIN[op], dtype, a, b)


def horizontal(e: Emitter, op: Op, dtype: DType, v: Value) -> Value:
    """All lanes as one scalar: the upper half joined to the lower, until one lane is left."""
    if dtype is DType.BOOL:
        name = "and" if identity(op, dtype) else "or"
        return e.call(f"llvm.vector.reduce.{name}.v{e.width}i1", "i1", v)
    if op in (Op.MAX, Op.MIN) and dtype.is_float:
        return _extreme(e, op, v)
    return _joined(e, v, lambda low, high: combine(e, op, dtype, low, high))


def _joined(e: Emitter, v: Value, join: Callable[[Value, Value], Value]) -> Value:
    lanes = e.width
    while lanes > 1:
        low, high = _halves(e, v, lanes)
        v, lanes = join(low, high), lanes // 2
    return e.lane(v)


def _extreme(e: Emitter, op: Op, v: Value) -> Value:
    """NaN is looked for once, not in every step."""
    predicate = "ogt" if op is Op.MAX else "olt"
    extreme = _joined(e, v, lambda low, high: e.select(e.compare(predicate, low, high), low, high))
    nan = Value(literal(math.nan, v.element), v.element)
    return e.select(any_lane(e, is_nan(e, v)), nan, extreme)


def _halves(e: Emitter, v: Value, lanes: int) -> tuple[Value, Value]:
    half = lanes // 2
    type_ = f"<{half} x {v.element}>"

    def pick(first: int) -> Value:
        order = ", ".join(f"i32 {lane}" for lane in range(first, first + half))
        return e.define(type_, f"shufflevector {v}, {v.type} poison, <{half} x i32> <{order}>")

    return pick(0), pick(half)


def combine_arg(e: Emitter, op: Op, dtype: DType, best: Pair, new: Pair) -> Pair:
    """The greater (ARGMAX) or smaller value; NaN wins; of equals, the smaller index."""
    better = _wins(e, op, dtype, new[0], best[0])
    worse = _wins(e, op, dtype, best[0], new[0])
    earlier = e.compare("slt", new[1], best[1])
    tie = e.binary("and", earlier, e.compare("eq", better, worse))  # both are never true
    take = e.binary("or", better, tie)
    return e.select(take, new[0], best[0]), e.select(take, new[1], best[1])


def _wins(e: Emitter, op: Op, dtype: DType, a: Value, b: Value) -> Value:
    direction = "gt" if op is Op.ARGMAX else "lt"
    if not dtype.is_float:
        prefix = "u" if dtype in (DType.U8, DType.BOOL) else "s"
        return e.compare(prefix + direction, a, b)
    beyond = e.compare("u" + direction, a, b)  # or either is NaN
    return e.binary("and", beyond, e.compare("ord", b, b))


def horizontal_arg(e: Emitter, op: Op, dtype: DType, best: Pair) -> Pair:
    """The best lane's value and index, as scalars."""
    values, indices = best
    lanes = e.width
    while lanes > 1:
        low_values, high_values = _halves(e, values, lanes)
        low_indices, high_indices = _halves(e, indices, lanes)
        values, indices = combine_arg(
            e, op, dtype, (low_values, low_indices), (high_values, high_indices)
        )
        lanes //= 2
    return e.lane(values), e.lane(indices)
