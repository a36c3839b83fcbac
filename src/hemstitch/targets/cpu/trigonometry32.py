"""f32 vector functions, continued: sines, tangents and their inverses (see math32)."""

from __future__ import annotations

import math

from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.vector_arithmetic import (
    add,
    bits,
    copy_sign,
    divide,
    f32,
    f64,
    from_bits,
    i32,
    magnitude,
    multiply,
    polynomial,
    subtract,
    where_rare,
)

_ROUNDER = 1.5 * 2.0**23
_LARGEST = 1e5  # beyond, subtracting multiples of pi/2 loses accuracy
_SMALLEST_EXPONENT = 143  # biased, of _LARGEST
_HALF_PI = (1.57079637, -4.37113883e-08, -1.71512489e-15)  # their sum, to 72 bits
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561  # times 2^256
_HALF_PI_HIGH, _HALF_PI_LOW = _HALF_PI[:2]

# (sin(r) - r) / r^3, cos(r), (tan(r) - r) / r^3 in r^2 for |r| <= pi/4
_SIN = (2.8325396e-06, -1.9853066e-04, 8.333379e-03, -1.6666667e-01)
_COS = (2.4432102e-05, -1.3887308e-03, 4.1666646e-02, -0.5, 1.0)
_TAN = (
    *(4.387637e-03, 7.01195e-05, 1.0847593e-02, 2.127942e-02),
    *(5.405997e-02, 1.333267e-01, 3.333335e-01),
)
# (asin(x) - x) / x^3 in x^2 for |x| <= _ASIN_BORDER; (atan(x) - x) / x^3 for |x| <= 1
_ASIN_BORDER = 0.5625
_ASIN = (
    *(4.748342e-02, 6.742907e-03, 3.4010686e-02),
    *(4.42322e-02, 7.502098e-02, 1.6666631e-01),
)
_ATAN = (
    *(-1.782176e-03, 1.0866363e-02, -3.1093631e-02, 5.7878915e-02, -8.399209e-02),
    *(1.0950861e-01, -1.4264014e-01, 1.999853e-01, -3.33333e-01),
)


def _reduce(e: Emitter, a: Value) -> tuple[Value, Value]:
    """(n in the low bits of an integer, r) with a = n pi/2 + r and |r| <= pi/4."""
    rounder = f32(e, _ROUNDER)
    rounded = e.fma(a, f32(e, 2 / math.pi), rounder)
    n, r = subtract(e, rounded, rounder), a
    for part in _HALF_PI:  # a true fma on every host: the parts have no spare bits
        r = e.intrinsic("fma", n, f32(e, -part), r)
    quadrant = bits(e, rounded)

    finite = e.compare("olt", a, f32(e, math.inf))
    huge = e.binary("and", finite, e.compare("ogt", a, f32(e, _LARGEST)))
    quadrant, r = where_rare(e, huge, (quadrant, r), lambda: _reduce_huge(e, a))
    return quadrant, r


def _reduce_huge(e: Emitter, a: Value) -> tuple[Value, Value]:
    """`_reduce` for finite a > _LARGEST: integer mantissa times the bits of 2/pi that matter.

    With a = m 2^k, bits of 2^k 2/pi that are multiples of 4 only add whole turns. The 96 bits
    from there on are cut out of 2/pi, and 2^62 times the angle in quadrants is a product mod 2^64.
    """

    def i64(value: int) -> Value:
        return e.constant(value - (1 << 64) if value >> 63 else value, "i64")

    wide = e.convert("zext", bits(e, a), "i64")
    mantissa = e.binary("or", e.binary("and", wide, i64(0x7FFFFF)), i64(0x800000))
    shift = e.binary("sub", e.binary("lshr", wide, i64(23)), i64(_SMALLEST_EXPONENT))
    words = [i64(_TWO_OVER_PI >> 9 >> 64 * k & (1 << 64) - 1) for k in (3, 2, 1, 0)]
    far = e.compare("uge", shift, i64(64))
    first, second, third = (e.select(far, words[k + 1], words[k]) for k in range(3))
    high = e.intrinsic("fshl", first, second, shift)  # the amount counts modulo 64
    low = e.binary("lshr", e.intrinsic("fshl", second, third, shift), i64(32))
    carried = e.binary("lshr", e.binary("mul", mantissa, low), i64(32))
    angle = e.binary("add", e.binary("mul", mantissa, high), carried)

    quadrant = e.binary("lshr", e.binary("add", angle, i64(1 << 61)), i64(62))
    rest = e.binary("sub", angle, e.binary("shl", quadrant, i64(62)))
    r = multiply(e, e.convert("sitofp", rest, "double"), f64(e, math.pi / 2 * 2.0**-62))
    return e.convert("trunc", quadrant, "i32"), e.convert("fptrunc", r, "float")


def _odd(e: Emitter, r: Value, coefficients: tuple[float, ...]) -> Value:
    """r + r^3 p(r^2)"""
    s = multiply(e, r, r)
    return e.fma(multiply(e, r, s), polynomial(e, s, coefficients), r)


def _sine(e: Emitter, quadrant: Value, r: Value, sign: Value) -> Value:
    """sin(quadrant pi/2 + r), its sign flipped by the top bit of `sign`."""
    is_cosine = e.convert("trunc", quadrant, "i1")
    wave = e.select(is_cosine, polynomial(e, multiply(e, r, r), _COS), _odd(e, r, _SIN))
    flip = e.binary("shl", e.binary("and", quadrant, i32(e, 2)), i32(e, 30))
    return from_bits(e, e.binary("xor", e.binary("xor", bits(e, wave), flip), sign))


def sin(e: Emitter, x: Value) -> Value:
    quadrant, r = _reduce(e, magnitude(e, x))
    sign = e.binary("and", bits(e, x), i32(e, -(1 << 31)))
    return _sine(e, quadrant, r, sign)


def cos(e: Emitter, x: Value) -> Value:
    quadrant, r = _reduce(e, magnitude(e, x))
    next_ = e.binary("add", quadrant, i32(e, 1))
    return _sine(e, next_, r, i32(e, 0))


def tan(e: Emitter, x: Value) -> Value:
    quadrant, r = _reduce(e, magnitude(e, x))
    tangent = _odd(e, r, _TAN)
    inverse = divide(e, f32(e, -1.0), tangent)
    result = e.select(e.convert("trunc", quadrant, "i1"), inverse, tangent)
    sign = e.binary("and", bits(e, x), i32(e, -(1 << 31)))
    return from_bits(e, e.binary("xor", bits(e, result), sign))


def _asin_parts(e: Emitter, x: Value) -> tuple[Value, Value]:
    """(where |x| > _ASIN_BORDER, asin(|x|), or asin(sqrt((1 - |x|) / 2)) there)."""
    a = magnitude(e, x)
    large = e.compare("ogt", a, f32(e, _ASIN_BORDER))
    square = e.fma(a, f32(e, -0.5), f32(e, 0.5))
    r = e.select(large, e.intrinsic("sqrt", square), a)
    square = e.select(large, square, multiply(e, a, a))
    return large, e.fma(multiply(e, r, square), polynomial(e, square, _ASIN), r)


def asin(e: Emitter, x: Value) -> Value:
    large, angle = _asin_parts(e, x)
    rest = e.fma(angle, f32(e, -2.0), f32(e, _HALF_PI_LOW))
    rest = add(e, rest, f32(e, _HALF_PI_HIGH))
    return copy_sign(e, e.select(large, rest, angle), x)


def acos(e: Emitter, x: Value) -> Value:
    large, angle = _asin_parts(e, x)
    twice = add(e, angle, angle)
    from_pi = add(e, subtract(e, f32(e, 2 * _HALF_PI_LOW), twice), f32(e, 2 * _HALF_PI_HIGH))
    negative = e.compare("olt", x, f32(e, 0.0))
    outer = e.select(negative, from_pi, twice)
    inner = subtract(e, f32(e, _HALF_PI_LOW), copy_sign(e, angle, x))
    inner = add(e, inner, f32(e, _HALF_PI_HIGH))
    return e.select(large, outer, inner)


def _atan_ratio(e: Emitter, ratio: Value, inverted: Value) -> Value:
    """atan(ratio) for 0 <= ratio <= 1; of 1 / ratio where `inverted`."""
    angle = _odd(e, ratio, _ATAN)
    rest = add(e, subtract(e, f32(e, _HALF_PI_LOW), angle), f32(e, _HALF_PI_HIGH))
    return e.select(inverted, rest, angle)


def atan(e: Emitter, x: Value) -> Value:
    a = magnitude(e, x)
    inverted = e.compare("ogt", a, f32(e, 1.0))
    ratio = e.select(inverted, divide(e, f32(e, 1.0), a), a)
    return copy_sign(e, _atan_ratio(e, ratio, inverted), x)


def atan2(e: Emitter, y: Value, x: Value) -> Value:
    """The angle of (x, y): atan of the smaller over the larger magnitude, then its octant."""
    a, b = magnitude(e, x), magnitude(e, y)
    inverted = e.compare("ogt", b, a)
    small, large = e.select(inverted, a, b), e.select(inverted, b, a)
    zero, one = f32(e, 0.0), f32(e, 1.0)
    ratio = e.select(e.compare("oeq", small, large), one, divide(e, small, large))  # inf / inf
    ratio = e.select(e.compare("oeq", large, zero), zero, ratio)
    angle = _atan_ratio(e, ratio, inverted)
    from_pi = add(e, subtract(e, f32(e, 2 * _HALF_PI_LOW), angle), f32(e, 2 * _HALF_PI_HIGH))
    left = e.compare("slt", bits(e, x), i32(e, 0))  # x < 0 or -0
    result = copy_sign(e, e.select(left, from_pi, angle), y)
    return e.select(e.compare("uno", x, y), f32(e, math.nan), result)
