"""Functions that NumPy lacks: for constants that are folded, and for the kernel interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hemstitch.ir.types import DType

Array = npt.NDArray[Any]

_SPLITTER = 2.0**27 + 1  # of an f64 into two halves
_FAR = 200  # exponents; the smaller of two numbers only says on which side the other one is


def per_element(function: Callable[[float], float]) -> Callable[[Any], Array]:
    """`function` of each element, computed in f64."""
    vectorized = np.vectorize(function, otypes=[np.float64])

    def apply_to(x: Any) -> Array:
        return np.asarray(vectorized(x.astype(np.float64)) if x.size else x)

    return apply_to


def integer_or_float_power(x: Any, y: Any) -> Array:
    """Of integers with a negative exponent: 1 or -1 for these two bases, and otherwise 0."""
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    unit_base_power = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y & 1), 0))
    return np.where(y < 0, unit_base_power, np.power(x, np.maximum(y, 0)))


def truncated_quotient(x: Any, y: Any) -> Array:
    whole = np.floor_divide(x, y)
    return np.asarray(whole + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0))))


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once to the type of `c`: what is added up in f64 is rounded to odd first,
    so that rounding it again does no harm. Denormal results in f64 are rounded twice."""
    first, second, addend = (np.asarray(x, np.float64) for x in (a, b, c))
    plain = first * second + addend
    if np.asarray(c).dtype != np.float64:
        return _rounded_to_odd(first * second, addend).astype(np.asarray(c).dtype)
    (first, up), (second, more), (addend, own) = map(np.frexp, (first, second, addend))
    exponent = up + more
    apart = np.where(addend == 0, 0, own - exponent)
    exponent = np.where(apart > _FAR, own - _FAR, exponent)
    addend = np.ldexp(addend, np.clip(apart, -_FAR, _FAR))
    product = first * second
    low, lost = _sum(addend, _lost_product(first, second, product))
    high, between = _sum(product, low)
    total = high + _rounded_to_odd(lost, between)
    is_number = np.isfinite(total) & (total != 0) & (product != 0)
    return np.where(is_number, np.ldexp(total, exponent), plain)


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """And what rounding it lost."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)


def _lost_product(a: Array, b: Array, product: Array) -> Array:
    """What rounding it lost."""
    (high, low), (other_high, other_low) = _halves(a), _halves(b)
    crossed = (high * other_high - product) + high * other_low + low * other_high
    return np.asarray(crossed + low * other_low)


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def _rounded_to_odd(a: Array, b: Array) -> Array:
    """a + b in f64."""
    total, lost = map(np.asarray, _sum(a, b))
    even = total.view(np.int64) & 1 == 0
    inexact = even & (lost != 0) & np.isfinite(total)
    return np.where(inexact, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)


def round_to(value: float, dtype: DType) -> float:
    """What a register of type `dtype` holds of `value`; half types round by way of f32."""
    with np.errstate(all="ignore"):
        match dtype:
            case DType.F64:
                return value
            case DType.F32:
                return float(np.float32(value))
            case DType.F16:
                return float(np.float16(np.float32(value)))
            case _:
                return _round_to_bf16(np.float32(value))


def _round_to_bf16(value: np.float32) -> float:
    if not np.isfinite(value):
        return float(value)
    bits = int(value.view(np.uint32))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
