"""Odd f32 functions that level off, by a table: 16 polynomials, one an interval of the argument.

AVX-512 looks 16 values up in a register in one instruction, so a polynomial of one interval each,
short because the interval is, costs half of what an exponential and a division do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hemstitch.targets.cpu.emitter import Emitter, Value, literal
from hemstitch.targets.cpu.vector_arithmetic import (
    at_most,
    bits,
    copy_sign,
    f32,
    magnitude,
    subtract,
)

INTERVALS = 16  # as many as a register has lanes: the low 4 bits of a lane choose
_ROUNDER = 1.5 * 2.0**23  # x + _ROUNDER holds x rounded to an integer in its low bits


@dataclass(frozen=True, slots=True)
class Table:
    """Interval k is `step` wide around k * step; beyond `end` the function is constant.
    `coefficients[d][k]`: of t^(degree - d), where t is the distance from the middle. `slope`: what
    comes to the first interval's coefficient of t, where f32 would round that badly."""

    step: float
    end: float
    slope: float
    coefficients: tuple[tuple[float, ...], ...]


def fit(
    function: Callable[[float], float], step: float, end: float, degree: int, slope: float = 0.0
) -> Table:
    """Of a function with f(-x) = -f(x). Its first interval is half as wide, and has no constant
    term: so what is close to 0 has a small relative error."""
    half = step / 2

    def column(middle: float) -> Sequence[float]:
        if middle == 0:
            inner = interpolate(lambda t: function(t) / t - slope, 0.0, half, degree - 1)
            return [0.0, *inner]
        return interpolate(lambda t: function(middle + t), -half, half, degree)

    columns = [column(k * step)[::-1] for k in range(INTERVALS)]
    return Table(step, end, slope, tuple(zip(*columns)))


def interpolate(
    function: Callable[[float], float], low: float, high: float, degree: int
) -> Sequence[float]:
    """Coefficients of the polynomial that meets `function` where Chebyshev says, lowest first."""
    count = degree + 1
    angles = [math.pi * (k + 0.5) / count for k in range(count)]
    nodes = [(low + high) / 2 + (high - low) / 2 * math.cos(angle) for angle in angles]
    differences = [function(node) for node in nodes]
    for order in range(1, count):
        for k in reversed(range(order, count)):
            width = nodes[k] - nodes[k - order]
            differences[k] = (differences[k] - differences[k - 1]) / width
    result = [differences[-1]]
    for k in reversed(range(degree)):  # result * (t - nodes[k]) + differences[k]
        shifted = [differences[k], *result]
        result = [a - nodes[k] * b for a, b in zip(shifted, [*result, 0.0])]
    return result


# Steps such that what f32 makes of the constant terms is right to a third of a unit of the result.
TANH = fit(math.tanh, 0.61559, 9.1, 7)
ERF = fit(math.erf, 0.25538, 3.95, 6, 2 / math.sqrt(math.pi) - 1)


def look_up(e: Emitter, table: Table, x: Value) -> Value:
    """The function at each lane of x, NaN included. Needs AVX-512."""
    a = at_most(e, magnitude(e, x), f32(e, table.end))
    rounder = f32(e, _ROUNDER)
    rounded = e.fma(a, f32(e, 1 / table.step), rounder)
    t = e.fma(subtract(e, rounded, rounder), f32(e, -table.step), a)
    place = table_index(e, bits(e, rounded))
    highest, *between, constant = (looked_up(e, row, place) for row in table.coefficients)
    if table.slope:
        slopes = [table.slope, *[0.0] * (INTERVALS - 1)]
        constant = e.fma(t, looked_up(e, slopes, place), constant)
    result = highest
    for coefficient in (*between, constant):
        result = e.fma(result, t, coefficient)
    return copy_sign(e, result, x)


def table_index(e: Emitter, index: Value) -> Value:
    """`index` in as many lanes as the table has; those beyond hold anything."""
    if e.width == INTERVALS:
        return index
    lanes = ", ".join(f"i32 {min(lane, e.width - 1)}" for lane in range(INTERVALS))
    order = f"<{INTERVALS} x i32> <{lanes}>"
    type_ = f"<{INTERVALS} x i32>"
    return e.define(type_, f"shufflevector {index}, {index.type} poison, {order}")


def looked_up(e: Emitter, row: Sequence[float], place: Value) -> Value:
    """For each lane the value of its interval: VPERMPS."""
    type_ = f"<{INTERVALS} x float>"
    values = ", ".join(f"float {literal(value, 'float')}" for value in row)
    vector = e.call("llvm.x86.avx512.permvar.sf.512", type_, Value(f"<{values}>", type_), place)
    if e.width == INTERVALS:
        return vector
    order = ", ".join(f"i32 {lane}" for lane in range(e.width))
    return e.define(
        e.vector("float"),
        f"shufflevector {vector}, {type_} poison, <{e.width} x i32> <{order}>",
    )
