"""Arithmetic as a GPU does it where NumPy does it differently or not at all; on arrays.

bf16 values are their bits in u16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BF16_NAN, _QUIET, _SIGN = np.uint32(0x7FC0), np.uint32(0x0040), np.uint32(0x8000)
_HALF_WAY, _ONE, _DROPPED = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_TF32 = np.uint32(0xFFFFE000)


def from_bf16(bits: Array) -> Array:
    """Exact, to f32."""
    return (bits.astype(np.uint32) << _DROPPED).view(np.float32)


def to_bf16(values: Array) -> Array:
    """Round to nearest even; every NaN becomes the same."""
    rounded = np.asarray(values, np.float32)
    bits = rounded.view(np.uint32)
    bits = (bits + _HALF_WAY + (bits >> _DROPPED & _ONE)) >> _DROPPED
    return np.where(np.isnan(rounded), _BF16_NAN, bits).astype(np.uint16)


def to_bf16_towards_zero(values: Array) -> Array:
    rounded = np.asarray(values, np.float32)
    return np.where(np.isnan(rounded), _BF16_NAN, rounded.view(np.uint32) >> _DROPPED).astype(
        np.uint16
    )


def to_integer(values: Array, dtype: np.dtype[Any]) -> Array:
    """Towards zero; saturates. NaN becomes 0, but where either side has 64 bits only the highest
    bit is set (PTX, cvt); 8 bits are cut from 16."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    wide = values.dtype == np.float64 or dtype.itemsize == 8
    of_nan = 1 << max(15, 8 * dtype.itemsize - 1) if wide else 0
    whole = np.trunc(values.astype(np.float64))
    low, high, nan = whole <= float(least), whole >= float(most), np.isnan(whole)
    inside = np.where(low | high | nan, 0.0, whole).astype(dtype)
    clipped = np.where(low, dtype.type(least), np.where(high, dtype.type(most), inside))
    return np.where(nan, np.array(of_nan, np.uint64).astype(dtype), clipped)


def to_tf32(values: Array) -> Array:
    """What the matrix units see of f32 operands: they ignore the low 13 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits & _TF32).view(np.float32)


def dot(left: Array, right: Array, start: Array) -> Array:
    """left @ right + start, rounded once to the type of `start`: products and sums in f64, which
    holds the products of f32 and all sums of integers that an i32 holds."""
    total: Array = np.matmul(left.astype(np.float64), right.astype(np.float64)) + start
    if start.dtype.kind in "iu":  # integers wrap
        total = total.astype(np.int64)
    return total.astype(start.dtype)


def through_f64(function: Callable[..., Array], *arguments: Array) -> Array:
    """A function of f32 values, computed in f64 and rounded once."""
    return np.asarray(function(*(each.astype(np.float64) for each in arguments)))
