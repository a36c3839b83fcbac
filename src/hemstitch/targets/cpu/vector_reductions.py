"""Reductions over vectors: what a masked-off lane holds, joining two vectors, joining the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import highest, identity
from hemstitch.ir.types import DType
from hemstitch.targets.cpu.conversions import COMPUTE
from hemstitch.targets.cpu.elementwise import apply
from hemstitch.targets.cpu.emitter import Emitter, Value, literal
from hemstitch.targets.cpu.vector_arithmetic import any_lane, is_nan

Pair = tuple[Value, Value]  # (value, i64 index)

ARG = (Op.ARGMAX, Op.ARGMIN)

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
    values: list[tuple[Value, ...]]
    is_broadcast: bool = False  # all lanes have what a scan has come to
    compensated: bool = False  # pairs of a sum and of what it has lost


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


def identity_values(e: Emitter, op: Op, dtype: DType) -> tuple[Value, ...]:
    """What an accumulator holds before anything is added."""
    nothing = e.constant(identity(op, dtype), COMPUTE[dtype])
    return (nothing, e.constant(highest(DType.I64), "i64")) if op in ARG else (nothing,)


def combined(
    e: Emitter, accumulator: Accumulator, a: tuple[Value, ...], b: tuple[Value, ...]
) -> tuple[Value, ...]:
    """Two copies of what it holds as one, lane by lane."""
    op, dtype = accumulator.op, accumulator.dtype
    if op in ARG:
        return combine_arg(e, op, dtype, (a[0], a[1]), (b[0], b[1]))
    if accumulator.compensated:
        return _two_sum(e, dtype, (a[0], a[1]), b[0])
    return (combine(e, op, dtype, a[0], b[0]),)


def _two_sum(e: Emitter, dtype: DType, total: Pair, new: Value) -> Pair:
    """Knuth's: of a sum and a term, the rounded sum and exactly what that lacks."""
    old, old_lost = total
    rounded = apply(e, Op.ADD, dtype, old, new)
    new_part = apply(e, Op.SUB, dtype, rounded, old)
    old_error = apply(e, Op.SUB, dtype, old, apply(e, Op.SUB, dtype, rounded, new_part))
    new_error = apply(e, Op.SUB, dtype, new, new_part)
    error = apply(e, Op.ADD, dtype, old_error, new_error)
    return rounded, apply(e, Op.ADD, dtype, old_lost, error)


def finished(e: Emitter, accumulator: Accumulator, value: tuple[Value, ...]) -> tuple[Value, ...]:
    """What it has come to, in every lane where it combines them."""
    op, dtype = accumulator.op, accumulator.dtype
    if accumulator.compensated:
        total, lost = value
        whole = apply(e, Op.ADD, dtype, total, lost)
        return (e.select(is_nan(e, lost), total, whole),)  # which it is where the sum is infinite
    if not accumulator.across or accumulator.is_broadcast:
        return value
    if op in ARG:
        return tuple(e.splat(x) for x in horizontal_arg(e, op, dtype, (value[0], value[1])))
    return (e.splat(horizontal(e, op, dtype, value[0])),)


def scanned(e: Emitter, accumulator: Accumulator, v: Value, mask: Value | None) -> Value:
    """Each lane joined to all before it and to what is carried, in log2(lanes) steps: after the
    k-th a lane holds its own value and those of the 2^k - 1 lanes before it."""
    op, dtype = accumulator.op, accumulator.dtype
    ((carried,), (nothing,)) = *accumulator.values, identity_values(e, op, dtype)
    if mask is not None:
        v = e.select(mask, v, nothing)
    distance = 1
    while distance < e.width:
        places = (lane if lane >= 0 else e.width for lane in range(-distance, e.width - distance))
        v = combine(e, op, dtype, _shuffled(e, v, nothing, places), v)
        distance *= 2
    v = combine(e, op, dtype, carried, v)
    accumulator.values = [(_shuffled(e, v, v, [e.width - 1] * e.width),)]  # the last, everywhere
    accumulator.is_broadcast = True
    return v


def _shuffled(e: Emitter, a: Value, b: Value, places: Iterable[int]) -> Value:
    order = ", ".join(f"i32 {place}" for place in places)
    return e.define(a.type, f"shufflevector {a}, {b.type} {b.text}, <{e.width} x i32> <{order}>")


def _halves(e: Emitter, v: Value, lanes: int) -> tuple[Value, Value]:
    half = lanes // 2
    type_ = f"<{half} x {v.element}>"

    def pick(first: int) -> Value:
        order = ", ".join(f"i32 {lane}" for lane in range(first, first + half))
        return e.define(type_, f"shufflevector {v}, {v.type} poison, <{half} x i32> <{order}>")

    return pick(0), pick(half)


def combine_arg(e: Emitter, op: Op, dtype: DType, best: Pair, new: Pair) -> Pair:
    """The greater (ARGMAX) or smaller value; NaN wins; of equals, the smaller index."""
    better = _is_better(e, op, dtype, new[0], best[0])
    worse = _is_better(e, op, dtype, best[0], new[0])
    earlier = e.compare("slt", new[1], best[1])
    tie = e.binary("and", earlier, e.compare("eq", better, worse))  # both are never true
    take = e.binary("or", better, tie)
    return e.select(take, new[0], best[0]), e.select(take, new[1], best[1])


def _is_better(e: Emitter, op: Op, dtype: DType, a: Value, b: Value) -> Value:
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
