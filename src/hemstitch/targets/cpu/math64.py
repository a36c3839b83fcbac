"""f64 functions on vectors: Sleef's, which torch brings along and eager calls, four lanes a call,
with AVX-512 eight; where there is no Sleef, libm's, one lane a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.graph import Op
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.vector_arithmetic import add, divide, f64, magnitude

LIBM = tuple(op for op, row in ELEMENTWISE.items() if row.in_libm)


def sleef(op: Op, lanes: int) -> str:
    """The function's name."""
    return f"Sleef_{op.value}d{lanes}_u{15 if op is Op.ERFC else 10}"


# Lanes of a call, and the names of all functions.
SLEEF = {lanes: [sleef(op, lanes) for op in LIBM] for lanes in (8, 4)}


def _library(op: Op) -> Callable[..., Value]:
    def function(e: Emitter, *operands: Value) -> Value:
        for lanes in SLEEF:
            if lanes <= e.features.sleef and e.width % lanes == 0:
                return e.per_part(sleef(op, lanes), lanes, *operands)
        return e.per_lane(op.value, "double", *operands)

    return function


def rsqrt(e: Emitter, x: Value) -> Value:
    return divide(e, f64(e, 1.0), e.intrinsic("sqrt", x))


def sigmoid(e: Emitter, x: Value) -> Value:
    """exp(min(x, 0)) / (1 + exp(-|x|)): neither tail loses its small values."""
    small, one = _library(Op.EXP)(e, e.fneg(magnitude(e, x))), f64(e, 1.0)
    numerator = e.select(e.compare("olt", x, f64(e, 0.0)), small, one)
    return divide(e, numerator, add(e, one, small))


def fmod(e: Emitter, a: Value, b: Value) -> Value:
    return e.binary("frem", a, b)


FUNCTIONS: Mapping[Op, Callable[..., Value]] = MappingProxyType(
    {op: _library(op) for op in LIBM} | {Op.RSQRT: rsqrt, Op.SIGMOID: sigmoid, Op.FMOD: fmod}
)
