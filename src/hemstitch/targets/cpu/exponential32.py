"""exp and sigmoid of f32 where AVX-512 looks 2^(j / 16) up in a register: what is left of the
argument is so small that a polynomial of degree 3 does.
"""

from __future__ import annotations

import math

from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.table32 import INTERVALS, interpolate, looked_up, table_index
from hemstitch.targets.cpu.vector_arithmetic import (
    add,
    at_least,
    at_most,
    bits,
    divide,
    f32,
    multiply,
    polynomial,
    subtract,
)

_LOWEST = -104.0  # exp of less is 0
_HIGHEST = 18.0  # sigmoid of more is 1
_ROUNDER = 1.5 * 2.0**23 / INTERVALS  # x + _ROUNDER holds x rounded to 1 / INTERVALS
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860677e-06
_RADIUS = math.log(2) / INTERVALS / 2
# What sigmoid's fraction is expanded by: so exp(-r) is below 1, where f32 is twice as fine, and all
# of the table is right to a quarter of its last place. Hardly any f32 is better at that.
_EXPANSION = 0.9581948518753052

_POWERS = tuple(2.0 ** (j / INTERVALS) for j in range(INTERVALS))
_EXPANDED_POWERS = tuple(_EXPANSION * power for power in _POWERS)


def _first_quotient(sign: float) -> tuple[float, ...]:
    """(exp(sign r) - 1) / r for |r| <= _RADIUS, highest power first."""
    coefficients = interpolate(
        lambda r: math.expm1(sign * r) / r if r else sign, -_RADIUS, _RADIUS, 2
    )
    return tuple(coefficients[::-1])


_GROWTH = _first_quotient(1.0)
_DECAY = (*(_EXPANSION * c for c in _first_quotient(-1.0)), _EXPANSION)


def _reduce(e: Emitter, x: Value) -> tuple[Value, Value, Value]:
    """(n, where the table holds 2^n but for its exponent, r) with x = n ln(2) + r."""
    rounder = f32(e, _ROUNDER)
    rounded = e.fma(x, f32(e, math.log2(math.e)), rounder)
    n = subtract(e, rounded, rounder)
    r = e.fma(n, f32(e, -_LN2_HIGH), x)
    return n, table_index(e, bits(e, rounded)), e.fma(n, f32(e, -_LN2_LOW), r)


def exp_below(e: Emitter, x: Value) -> Value:
    """exp(x) for x <= 89. VSCALEFPS takes the whole part of n by itself; what becomes zero is left
    out, since computing it would underflow, and processors take a hundred cycles for that."""
    n, place, r = _reduce(e, x)
    power = looked_up(e, _POWERS, place)
    growth = multiply(e, polynomial(e, r, _GROWTH), r)
    return e.scalef(e.fma(power, growth, power), n, e.compare("uge", x, f32(e, _LOWEST)))


def sigmoid(e: Emitter, x: Value) -> Value:
    """s / (s + exp(-r)) with s = 2^n: whatever the sign of x, neither tail loses its small values.
    The quotient by one Newton step, but where a division costs less."""
    bounded = at_most(e, x, f32(e, _HIGHEST))
    if e.features.fast_division:  # whose comparisons also take the places of multiplications
        power, whole = _fraction(e, at_least(e, bounded, f32(e, _LOWEST)))
        return divide(e, power, whole)
    counts = e.compare("uge", x, f32(e, _LOWEST))  # what is left out would underflow, as in exp
    power, whole = _fraction(e, bounded, counts)
    inverse = e.rcp14(whole)
    ratio = multiply(e, power, inverse)
    residue = e.fma(e.fneg(ratio), whole, power)
    return e.select(counts, e.fma(residue, inverse, ratio), f32(e, 0.0))


def _fraction(e: Emitter, x: Value, where: Value | None = None) -> tuple[Value, Value]:
    """Of sigmoid(x), both sides expanded; the upper one is 0 but `where`."""
    n, place, r = _reduce(e, x)
    power = e.scalef(looked_up(e, _EXPANDED_POWERS, place), n, where)
    return power, add(e, power, polynomial(e, r, _DECAY))
