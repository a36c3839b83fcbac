"""NumPy semantics of the kernel IR: elementwise ops, storage types and reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.graph import Op
from hemstitch.ir.ops import highest, identity
from hemstitch.ir.types import DType

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]  # value and position, for ARGMAX and ARGMIN

# Types of computation. NumPy has no bfloat16: `STORED` has its bits, as u16.
COMPUTED: Mapping[DType, type[np.generic]] = MappingProxyType(
    {
        DType.BOOL: np.bool_,
        DType.U8: np.uint8,
        DType.I8: np.int8,
        DType.I16: np.int16,
        DType.I32: np.int32,
        DType.I64: np.int64,
        DType.F16: np.float32,
        DType.BF16: np.float32,
        DType.F32: np.float32,
        DType.F64: np.float64,
    }
)
STORED: Mapping[DType, type[np.generic]] = MappingProxyType(
    {**COMPUTED, DType.F16: np.float16, DType.BF16: np.uint16}
)


def to_storage(value: Array, dtype: DType) -> Array:
    """The elements of `value` as memory holds them (`STORED`)."""
    return _bfloat_bits(value) if dtype is DType.BF16 else value.astype(STORED[dtype])


def from_storage(value: Array, dtype: DType) -> Array:
    """Stored elements as they are computed with (`COMPUTED`)."""
    if dtype is DType.BF16:
        return (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return value.astype(COMPUTED[dtype])


def _bfloat_bits(value: Array) -> Array:
    """The bits of bfloat16, rounded to nearest even."""
    bits = np.atleast_1d(value.astype(np.float32)).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    quiet = np.where(np.isnan(np.atleast_1d(value)), np.uint64(0x7FC0), rounded)
    return quiet.astype(np.uint16).reshape(value.shape)


def cast(value: Array, target: DType) -> Array:
    """PyTorch's `x.to(target)`. Half types are rounded, and held as f32."""
    if value.dtype.kind == "f" and not target.is_float and target is not DType.BOOL:
        integer_type = np.int64 if target is DType.I64 else np.int32
        return value.astype(integer_type).astype(COMPUTED[target])
    return from_storage(to_storage(value, target), target)


def apply(op: Op, *operands: Array) -> Array:
    """The elementwise `op`, without the rounding to its result type."""
    return np.asarray(ARITHMETIC[op](*operands))


# --- arithmetic


ARITHMETIC: Mapping[Op, Callable[..., Any]] = MappingProxyType(
    {op: row.function for op, row in ELEMENTWISE.items()} | {Op.WHERE: np.where}
)

# --- reductions

_JOIN: Mapping[Op, Any] = MappingProxyType(
    {
        Op.SUM: np.add,
        Op.PROD: np.multiply,
        Op.MAX: np.maximum,
        Op.MIN: np.minimum,
        Op.ANY: np.logical_or,
        Op.ALL: np.logical_and,
    }
)
ARG = (Op.ARGMAX, Op.ARGMIN)


def identity_values(op: Op, dtype: DType, computed: type[np.generic]) -> tuple[Array, ...]:
    """The initial value of an accumulator: the identity of `op`; for ARGMAX and ARGMIN also a
    position."""
    value = np.asarray(identity(op, dtype)).astype(computed)
    return (value, np.asarray(highest(DType.I64), np.int64)) if op in ARG else (value,)


def combine(op: Op, a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    """Two accumulators of `op`, combined lane by lane."""
    if op in ARG:
        return _combine_pairs(op, (a[0], a[1]), (b[0], b[1]))
    return (np.asarray(_JOIN[op](a[0], b[0])),)


def _combine_pairs(op: Op, a: Pair, b: Pair) -> Pair:
    """The greater value (ARGMAX) or the smaller one (ARGMIN). NaN wins; of equal values the smaller
    position does."""
    better, worse = _is_better(op, b[0], a[0]), _is_better(op, a[0], b[0])
    take = better | ((better == worse) & (b[1] < a[1]))
    return np.where(take, b[0], a[0]), np.where(take, b[1], a[1])


def _is_better(op: Op, a: Array, b: Array) -> Array:
    beyond = np.greater(a, b) if op is Op.ARGMAX else np.less(a, b)
    if a.dtype.kind != "f":
        return np.asarray(beyond)
    return np.asarray(~np.isnan(b) & (beyond | np.isnan(a)))


def rescaled(held: Array, old: Array, new: Array) -> Array:
    """A sum relative to a running maximum, after that grew from `old` to `new` (online softmax)."""
    scaled = held * np.exp(old - new).astype(held.dtype)
    return np.asarray(np.where(np.isneginf(old), np.zeros((), held.dtype), scaled))


def across_lanes(op: Op, lanes: tuple[Array, ...]) -> tuple[Array, ...]:
    """All lanes combined to one value. There is at least one lane."""
    while lanes[0].shape[0] > 1:
        half = lanes[0].shape[0] // 2
        joined = combine(
            op, tuple(part[:half] for part in lanes), tuple(part[half : 2 * half] for part in lanes)
        )
        rest = tuple(part[2 * half :] for part in lanes)
        lanes = tuple(np.concatenate(pair) for pair in zip(joined, rest))
    return tuple(part[0] for part in lanes)
