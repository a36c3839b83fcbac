"""f32 vector functions, inlined: polynomials, right at zeros, infinities, NaN and denormals.

The coefficients are minimax fits of this project, rounded one after the other to f32. Errors
against f64 over all of f32 are at most 2 ulp (3: tan, erfc); tests/targets measures them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hemstitch.ir.graph import Op
from hemstitch.targets.cpu import exponential32, table32
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.trigonometry32 import acos, asin, atan, atan2, cos, sin, tan
from hemstitch.targets.cpu.vector_arithmetic import (
    add,
    at_least,
    at_most,
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

_MANTISSA_BITS = 23
_FLOAT_MAX = 3.4028234663852886e38
_BIAS = 127  # of an exponent
_EXPONENT_MASK = -0x800000
_ROUNDER = 1.5 * 2.0**23  # x + _ROUNDER holds x rounded to an integer in its low bits
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860677e-06
_EXP_LOW, _EXP_HIGH = -104.0, 89.0  # beyond these exp is 0 and inf
_SIGMOID_HIGH = 18.0  # sigmoid of more is 1
_LIFT = 25  # 2^(n + _LIFT - 1) is no denormal where exp is more than 0

# exp(r) and (exp(r) - 1 - r) / r^2 for |r| <= ln(2)/2; 2^r for |r| <= 1/2
_EXP = (1.3818742e-03, 8.368721e-03, 4.1668292e-02, 1.6666521e-01, 4.9999994e-01, 1.0, 1.0)
# _EXPANSION exp(-r) without its first term. Sigmoid's fraction is expanded by that: what is less
# than 1 is twice as fine in f32
_EXPANSION = 0.6875
_DECAY = (
    *(9.482138557359576e-04, -5.753281991928816e-03, 2.8647320345044136e-02),
    *(-1.145823523402214e-01, 3.437499403953552e-01, -0.6875),
)
_EXPM1 = (1.9764433e-04, 1.3932388e-03, 8.333543e-03, 4.1666493e-02, 1.6666666e-01, 0.5)
_EXP2 = (
    *(1.5328823e-04, 1.3391208e-03, 9.618501e-03),
    *(5.5503592e-02, 2.4022648e-01, 6.931472e-01, 1.0),
)
# (log(1 + f) - f) / f^2 for -1/4 <= f <= 1/2
_LOG1P = (
    *(-4.5153014e-02, 1.047263e-01, -1.3163954e-01, 1.4477625e-01, -1.6646877e-01),
    *(1.9990848e-01, -2.500011e-01, 3.333345e-01, -0.5),
)
# (sinh(x) - x) / x^3 in x^2 for |x| <= 1
_SINH = (2.7822132e-06, 1.9842896e-04, 8.3333105e-03, 1.6666667e-01)
# (erf(x) - x) / x in x^2 for |x| <= _ERF_BORDER; log2(erfc(x)) / x beyond
_ERF_BORDER, _ERF_HIGH = 0.9277, 3.95
_ERF_SMALL = (
    *(-5.970269e-04, 4.9894317e-03, -2.6764356e-02),
    *(1.12817675e-01, -3.7612492e-01, 1.2837915e-01),
)
_ERF_LARGE = (
    *(3.0769306e-04, -4.6298527e-03, 3.2996766e-02),
    *(-1.5181999e-01, -9.1717815e-01, -1.6280932e00),
)
# 2^r for |r| <= 1/2, as exact as what is taken from 1 need be
_ERF_POWER = (
    *(1.3264727e-03, 9.671513e-03, 5.5507336e-02),
    *(2.4022242e-01, 6.93147e-01, 1.0),
)
# (1 + 2 a) exp(a^2) erfc(a) - 1 in (a - 2) / (a + 2) for 0 <= a <= 10.06
_ERFC = (
    *(-4.0275953e-04, -1.2376392e-03, 1.3086491e-03, 8.6377505e-03, -8.054119e-03),
    *(-5.4205585e-02, 1.640536e-01, -1.660314e-01, -9.276383e-02, 2.769784e-01),
)
# in double: log2((1 + s) / (1 - s)) / s in s^2 for |s| <= 1/5; 2^r for |r| <= 1/2
_LOG2_DOUBLE = (
    *(2.911964480752307e-01, 3.1925177853455655e-01, 4.1222722184168104e-01),
    *(5.770777422916143e-01, 9.617966948834522e-01, 2.885390081777385e00),
)
_EXP2_DOUBLE = (
    *(1.5201715299822224e-05, 1.5469553200178168e-04, 1.33339254967494e-03),
    *(9.618026441882964e-03, 5.550410347255878e-02, 2.4022651204159784e-01),
    *(6.931471807311608e-01, 9.999999999610723e-01),
)


# --- exponentials: exp(x) = 2^n exp(r), |r| <= ln(2)/2


def _reduce(e: Emitter, x: Value, bias: int = 0) -> tuple[Value, Value]:
    """(n + bias + _ROUNDER, r)."""
    rounder = f32(e, _ROUNDER + bias)
    rounded = e.fma(x, f32(e, math.log2(math.e)), rounder)
    n = subtract(e, rounded, rounder)
    r = e.fma(n, f32(e, -_LN2_HIGH), x)
    return rounded, e.fma(n, f32(e, -_LN2_LOW), r)


def _to_exponent(e: Emitter, rounded: Value) -> Value:
    """n shifted to where an f32 has its exponent, of n + _ROUNDER."""
    return e.binary("shl", bits(e, rounded), i32(e, _MANTISSA_BITS))


def _power_of_two(e: Emitter, rounded: Value) -> Value:
    """2^n for -127 < n < 128, of n + _BIAS + _ROUNDER."""
    return from_bits(e, _to_exponent(e, rounded))


def _scale(e: Emitter, x: Value, rounded: Value) -> Value:
    """x 2^n for any n, of n + 2 _BIAS + _ROUNDER, in two steps: so it overflows to inf and
    underflows to denormals."""
    exponents = _to_exponent(e, rounded)  # of both factors, added up
    half = e.binary("and", e.binary("lshr", exponents, i32(e, 1)), i32(e, _EXPONENT_MASK))
    rest = e.binary("sub", exponents, half)
    return multiply(e, multiply(e, x, from_bits(e, half)), from_bits(e, rest))


def exp(e: Emitter, x: Value) -> Value:
    x = at_most(e, x, f32(e, _EXP_HIGH))
    return exponential32.exp_below(e, x) if e.features.avx512 else _exp_below(e, x)


def _exp_below(e: Emitter, x: Value) -> Value:
    """exp(x) for x <= _EXP_HIGH. What becomes zero is left out: computing it would underflow, and
    processors take a hundred cycles for that (masked softmax is full of it)."""
    if e.features.avx512:
        rounded, r = _reduce(e, x)
        n = subtract(e, rounded, f32(e, _ROUNDER))
        return e.scalef(polynomial(e, r, _EXP), n, e.compare("uge", x, f32(e, _EXP_LOW)))
    zero = f32(e, 0.0)
    vanishes = e.compare("olt", x, f32(e, _EXP_LOW))
    rounded, r = _reduce(e, e.select(vanishes, zero, x), 2 * _BIAS)
    return e.select(vanishes, zero, _scale(e, polynomial(e, r, _EXP), rounded))


def _half_exp(e: Emitter, x: Value) -> Value:
    """exp(x) / 2 for x >= 0, finite wherever that is."""
    rounded, r = _reduce(e, at_most(e, x, f32(e, _EXP_HIGH + 1)), 2 * _BIAS - 1)
    return _scale(e, polynomial(e, r, _EXP), rounded)


def exp2(e: Emitter, x: Value) -> Value:
    x = at_least(e, at_most(e, x, f32(e, 129.0)), f32(e, -151.0))
    rounder = f32(e, _ROUNDER + 2 * _BIAS)
    rounded = add(e, x, rounder)
    r = subtract(e, x, subtract(e, rounded, rounder))
    return _scale(e, polynomial(e, r, _EXP2), rounded)


def _expm1_reduced(e: Emitter, r: Value) -> Value:
    return e.fma(multiply(e, r, r), polynomial(e, r, _EXPM1), r)


def expm1(e: Emitter, x: Value) -> Value:
    bounded = at_least(e, at_most(e, x, f32(e, _EXP_HIGH)), f32(e, -18.0))
    # half the result, because 2^128 is no f32
    rounded, r = _reduce(e, bounded, _BIAS - 1)
    half = _power_of_two(e, rounded)
    result = e.fma(_expm1_reduced(e, r), half, subtract(e, half, f32(e, 0.5)))
    tiny = e.compare("olt", magnitude(e, x), f32(e, 2.0**-25))
    return e.select(tiny, x, add(e, result, result))


def sigmoid(e: Emitter, x: Value) -> Value:
    """s / (s + exp(-r)) with s = 2^n: whatever the sign of x, neither tail loses its small values.
    What is divided is 2^_LIFT s, which is never a denormal, or 0 where the result is."""
    if e.features.avx512:
        return exponential32.sigmoid(e, x)
    counts = e.compare("uge", x, f32(e, _EXP_LOW))
    x = at_least(e, at_most(e, x, f32(e, _SIGMOID_HIGH)), f32(e, _EXP_LOW))
    rounded, r = _reduce(e, x)
    lifted = bits(e, f32(e, 2.0**_LIFT * _EXPANSION))
    power = from_bits(e, e.binary("add", _to_exponent(e, rounded), lifted))
    power = e.select(counts, power, f32(e, 0.0))
    whole = e.fma(power, f32(e, 2.0**-_LIFT), f32(e, _EXPANSION))
    whole = e.fma(polynomial(e, r, _DECAY), r, whole)
    return multiply(e, divide(e, power, whole), f32(e, 2.0**-_LIFT))


def tanh(e: Emitter, x: Value) -> Value:
    """t / (t + 2) with t = exp(2 |x|) - 1, which is accurate near 0 too."""
    if e.features.avx512:
        return table32.look_up(e, table32.TANH, x)
    a = at_most(e, magnitude(e, x), f32(e, 9.25))
    rounded, r = _reduce(e, add(e, a, a), _BIAS)
    scale = _power_of_two(e, rounded)
    square, rest = multiply(e, r, r), polynomial(e, r, _EXPM1)
    reduced = e.fma(square, rest, r)
    below = subtract(e, scale, f32(e, 1.0))
    t = e.fma(reduced, scale, below)
    inverse = divide(e, f32(e, 1.0), add(e, t, f32(e, 2.0)))
    ratio = multiply(e, t, inverse)
    residue = e.fma(e.fneg(ratio), t, e.fma(ratio, f32(e, -2.0), t))  # of t + 2's rounding too
    # What rounding `reduced` and t has lost.
    lost = e.fma(square, rest, subtract(e, r, reduced))
    lost = e.fma(lost, scale, e.fma(reduced, scale, subtract(e, below, t)))
    residue = e.fma(lost, add(e, inverse, inverse), residue)
    return copy_sign(e, e.fma(residue, inverse, ratio), x)


def sinh(e: Emitter, x: Value) -> Value:
    a = magnitude(e, x)
    half = _half_exp(e, a)
    large = subtract(e, half, divide(e, f32(e, 0.25), half))
    s = multiply(e, a, a)
    small = e.fma(multiply(e, a, s), polynomial(e, s, _SINH), a)
    return copy_sign(e, e.select(e.compare("olt", a, f32(e, 1.0)), small, large), x)


def cosh(e: Emitter, x: Value) -> Value:
    half = _half_exp(e, magnitude(e, x))
    return add(e, half, divide(e, f32(e, 0.25), half))


# --- the error function


def erf(e: Emitter, x: Value) -> Value:
    if e.features.avx512:
        return table32.look_up(e, table32.ERF, x)
    a = magnitude(e, x)
    bounded = at_most(e, a, f32(e, _ERF_HIGH))
    logarithm = multiply(e, bounded, polynomial(e, bounded, _ERF_LARGE))
    rounder = f32(e, _ROUNDER + _BIAS)
    rounded = add(e, logarithm, rounder)
    rest = polynomial(e, subtract(e, logarithm, subtract(e, rounded, rounder)), _ERF_POWER)
    large = e.fma(e.fneg(rest), _power_of_two(e, rounded), f32(e, 1.0))
    small = e.fma(a, polynomial(e, multiply(e, a, a), _ERF_SMALL), a)
    beyond = e.compare("ogt", a, f32(e, _ERF_BORDER))
    return copy_sign(e, e.select(beyond, large, small), x)


def erfc(e: Emitter, x: Value) -> Value:
    """exp(-a^2) P(q) / (1 + 2 a) with q = (a - 2) / (a + 2), a = |x|; 2 minus that for x < 0."""
    a = at_most(e, magnitude(e, x), f32(e, 10.5))
    one, two = f32(e, 1.0), f32(e, 2.0)
    reciprocal = divide(e, one, add(e, a, two))
    q = e.fma(f32(e, -4.0), reciprocal, one)
    q_error = e.fma(e.fneg(a), q, e.fma(add(e, q, one), f32(e, -2.0), a))
    q = e.fma(reciprocal, q_error, q)
    p = polynomial(e, q, _ERFC)
    inverse = divide(e, f32(e, 0.5), add(e, a, f32(e, 0.5)))
    ratio = e.fma(p, inverse, inverse)
    # one Newton step on (1 + p) / (1 + 2 a)
    residue = add(e, subtract(e, p, ratio), e.fma(add(e, ratio, ratio), e.fneg(a), one))
    ratio = e.fma(residue, inverse, ratio)
    square = multiply(e, a, a)
    square_error = e.fma(e.fneg(a), a, square)
    ratio = e.fma(ratio, square_error, ratio)
    tail = multiply(e, ratio, _exp_below(e, e.fneg(square)))
    return e.select(e.compare("olt", x, f32(e, 0.0)), subtract(e, two, tail), tail)


# --- logarithms: log(x) = n ln(2) + log(1 + f), -1/4 <= f <= 1/2


def _log_exponent(e: Emitter, x: Value) -> Value:
    """n, still shifted, such that x / 2^n is between 3/4 and 3/2."""
    above = e.binary("sub", bits(e, x), i32(e, 0x3F400000))
    return e.binary("and", above, i32(e, _EXPONENT_MASK))


def _log1p_reduced(e: Emitter, f: Value) -> Value:
    return e.fma(multiply(e, f, f), polynomial(e, f, _LOG1P), f)


def _log_parts(e: Emitter, x: Value) -> tuple[Value, Value]:
    """(n, log(1 + f)) for positive finite x."""
    denormal = e.compare("olt", x, f32(e, 2.0**-126))
    x = e.select(denormal, multiply(e, x, f32(e, 2.0**_MANTISSA_BITS)), x)
    offset = e.select(denormal, f32(e, -float(_MANTISSA_BITS)), f32(e, 0.0))
    exponent = _log_exponent(e, x)
    n = e.fma(e.convert("sitofp", exponent, "float"), f32(e, 2.0**-_MANTISSA_BITS), offset)
    mantissa = from_bits(e, e.binary("sub", bits(e, x), exponent))
    return n, _log1p_reduced(e, subtract(e, mantissa, f32(e, 1.0)))


def _log_special(e: Emitter, x: Value, result: Value, zero: Value) -> Value:
    """Of 0, inf, NaN and negative x; `zero` is what counts as 0: x for log, x + 1 for log1p."""
    nothing = f32(e, 0.0)
    result = e.select(e.compare("olt", x, f32(e, math.inf)), result, x)
    result = e.select(e.compare("oeq", zero, nothing), f32(e, -math.inf), result)
    return e.select(e.compare("olt", zero, nothing), f32(e, math.nan), result)


def log(e: Emitter, x: Value) -> Value:
    n, rest = _log_parts(e, x)
    return _log_special(e, x, e.fma(n, f32(e, math.log(2)), rest), x)


def log2(e: Emitter, x: Value) -> Value:
    n, rest = _log_parts(e, x)
    low = e.fma(rest, f32(e, 1.9259629e-08), n)
    return _log_special(e, x, e.fma(rest, f32(e, 1.4426950), low), x)


def log10(e: Emitter, x: Value) -> Value:
    n, rest = _log_parts(e, x)
    low = e.fma(n, f32(e, 4.60503898e-06), multiply(e, rest, f32(e, -1.0108623e-08)))
    high = multiply(e, n, f32(e, 0.301025390625))  # exact
    high = e.fma(rest, f32(e, 0.43429449), high)
    return _log_special(e, x, add(e, high, low), x)


def log1p(e: Emitter, x: Value) -> Value:
    """As log(1 + x), but f = x / 2^n + (1 / 2^n - 1), where rounding 1 + x cannot hurt."""
    one_more = add(e, x, f32(e, 1.0))
    exponent = _log_exponent(e, one_more)
    scaled = from_bits(e, e.binary("sub", bits(e, x), exponent))
    four = from_bits(e, e.binary("sub", i32(e, 0x40800000), exponent))  # 4 / 2^n is no denormal
    f = add(e, scaled, e.fma(four, f32(e, 0.25), f32(e, -1.0)))
    n = multiply(e, e.convert("sitofp", exponent, "float"), f32(e, 2.0**-_MANTISSA_BITS))
    result = e.fma(n, f32(e, math.log(2)), _log1p_reduced(e, f))
    result = e.select(e.compare("oeq", x, f32(e, 0.0)), x, result)
    return _log_special(e, x, result, one_more)


# --- powers


def rsqrt(e: Emitter, x: Value) -> Value:
    return divide(e, f32(e, 1.0), e.intrinsic("sqrt", x))


def power(e: Emitter, x: Value, y: Value) -> Value:
    """|x|^y in double, then the sign and the special cases of C99's pow."""
    one, largest = f32(e, 1.0), f32(e, _FLOAT_MAX)
    exponent = at_least(e, at_most(e, y, largest), e.fneg(largest))  # 1^inf is 1: no inf * 0
    logarithm = _log2_double(e, e.convert("fpext", magnitude(e, x), "double"))
    wide = _exp2_double(e, multiply(e, e.convert("fpext", exponent, "double"), logarithm))
    result = e.convert("fptrunc", wide, "float")

    whole, half = e.intrinsic("trunc", y), multiply(e, y, f32(e, 0.5))
    half_is_broken = e.compare("une", e.intrinsic("trunc", half), half)
    odd = e.binary("and", e.compare("oeq", whole, y), half_is_broken)
    result = e.select(odd, copy_sign(e, result, x), result)

    negative = e.compare("olt", x, f32(e, 0.0))
    finite = e.compare("one", x, f32(e, -math.inf))
    complex_ = e.binary("and", e.binary("and", negative, finite), e.compare("one", whole, y))
    result = e.select(complex_, f32(e, math.nan), result)
    certain = e.binary("or", e.compare("oeq", x, one), e.compare("oeq", y, f32(e, 0.0)))
    return e.select(certain, one, result)


def _log2_double(e: Emitter, x: Value) -> Value:
    """log2 of x >= 0 that comes from an f32 (so that it is no denormal), to 2^-40."""
    above = e.binary("sub", bits(e, x), e.constant(0x3FE8000000000000, "i64"))
    exponent = e.binary("and", above, e.constant(-(1 << 52), "i64"))
    mantissa = from_bits(e, e.binary("sub", bits(e, x), exponent))
    shifted = e.binary("ashr", exponent, e.constant(52, "i64"))
    n = e.convert("sitofp", e.convert("trunc", shifted, "i32"), "double")
    one = f64(e, 1.0)
    s = divide(e, subtract(e, mantissa, one), add(e, mantissa, one))
    result = e.fma(s, polynomial(e, multiply(e, s, s), _LOG2_DOUBLE), n)
    result = e.select(e.compare("oeq", x, f64(e, 0.0)), f64(e, -math.inf), result)
    return e.select(e.compare("olt", x, f64(e, math.inf)), result, x)


def _exp2_double(e: Emitter, x: Value) -> Value:
    """2^x to 2^-34; beyond the range of f32, anything beyond it."""
    x = at_least(e, at_most(e, x, f64(e, 200.0)), f64(e, -200.0))
    rounder = f64(e, 1.5 * 2.0**52)
    rounded = add(e, x, rounder)
    r = subtract(e, x, subtract(e, rounded, rounder))
    exponent = e.binary("shl", bits(e, rounded), e.constant(52, "i64"))
    scale = from_bits(e, e.binary("add", exponent, bits(e, f64(e, 1.0))))
    return multiply(e, polynomial(e, r, _EXP2_DOUBLE), scale)


# --- the remainder of division


def fmod(e: Emitter, a: Value, b: Value) -> Value:
    """a - n b, exact: the quotient is an f32 up to 2^24; what is beyond is reduced in double."""
    x, y = magnitude(e, a), magnitude(e, b)
    quotient = e.intrinsic("trunc", divide(e, x, y))
    rest = _take_multiple(e, x, y, quotient)
    rest = e.select(e.compare("olt", x, y), x, rest)  # y may be inf
    far = e.compare("oge", quotient, f32(e, 2.0**24))
    (rest,) = where_rare(e, far, (rest,), lambda: (_fmod_double(e, x, y),))
    return copy_sign(e, rest, a)


def _take_multiple(e: Emitter, x: Value, y: Value, quotient: Value) -> Value:
    """x - quotient y, where the quotient may be too large by one. A true fma: it is exact."""
    rest = e.intrinsic("fma", e.fneg(quotient), y, x)
    return e.select(e.compare("olt", rest, e.constant(0.0, x.element)), add(e, rest, y), rest)


def _fmod_double(e: Emitter, x: Value, y: Value) -> Value:
    """fmod(fmod(x, 2^k y), y) is fmod(x, y): so, by 50 bits of the quotient at a time."""
    x, y = e.convert("fpext", x, "double"), e.convert("fpext", y, "double")
    for shift in (250, 200, 150, 100, 50, 0):
        multiple = multiply(e, y, f64(e, 2.0**shift))
        x = _take_multiple(e, x, multiple, e.intrinsic("trunc", divide(e, x, multiple)))
    return e.convert("fptrunc", x, "float")


FUNCTIONS: Mapping[Op, Callable[..., Value]] = MappingProxyType(
    {
        Op.EXP: exp,
        Op.EXP2: exp2,
        Op.EXPM1: expm1,
        Op.LOG: log,
        Op.LOG2: log2,
        Op.LOG10: log10,
        Op.LOG1P: log1p,
        Op.RSQRT: rsqrt,
        Op.SIN: sin,
        Op.COS: cos,
        Op.TAN: tan,
        Op.ASIN: asin,
        Op.ACOS: acos,
        Op.ATAN: atan,
        Op.SINH: sinh,
        Op.COSH: cosh,
        Op.TANH: tanh,
        Op.SIGMOID: sigmoid,
        Op.ERF: erf,
        Op.ERFC: erfc,
        Op.POW: power,
        Op.FMOD: fmod,
        Op.ATAN2: atan2,
    }
)
