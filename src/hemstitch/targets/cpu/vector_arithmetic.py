"""Shorthand that the vector functions are written in: arithmetic, constants, bits, polynomials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hemstitch.targets.cpu.emitter import Emitter, Value


def add(e: Emitter, a: Value, b: Value) -> Value:
    return e.binary("fadd", a, b)


def subtract(e: Emitter, a: Value, b: Value) -> Value:
    return e.binary("fsub", a, b)


def multiply(e: Emitter, a: Value, b: Value) -> Value:
    return e.binary("fmul", a, b)


def divide(e: Emitter, a: Value, b: Value) -> Value:
    return e.binary("fdiv", a, b)


def f32(e: Emitter, value: float) -> Value:
    return e.constant(value, "float")


def f64(e: Emitter, value: float) -> Value:
    return e.constant(value, "double")


def i32(e: Emitter, value: int) -> Value:
    return e.constant(value, "i32")


def bits(e: Emitter, x: Value) -> Value:
    """The bits of an f32 or f64 vector as integers of its size."""
    return e.convert("bitcast", x, "i32" if x.element == "float" else "i64")


def from_bits(e: Emitter, x: Value) -> Value:
    return e.convert("bitcast", x, "float" if x.element == "i32" else "double")


def magnitude(e: Emitter, x: Value) -> Value:
    return e.intrinsic("fabs", x)


def copy_sign(e: Emitter, x: Value, sign: Value) -> Value:
    return e.intrinsic("copysign", x, sign)


def is_nan(e: Emitter, x: Value) -> Value:
    return e.compare("uno", x, x)


def at_least(e: Emitter, x: Value, low: Value) -> Value:
    """max(x, low), where a NaN x stays NaN: one instruction on x86."""
    return e.select(e.compare("ogt", low, x), low, x)


def at_most(e: Emitter, x: Value, high: Value) -> Value:
    """min(x, high), where a NaN x stays NaN."""
    return e.select(e.compare("olt", high, x), high, x)


def polynomial(e: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule, highest power first: the fewest instructions."""
    result = e.constant(coefficients[0], x.element)
    for coefficient in coefficients[1:]:
        result = e.fma(result, x, e.constant(coefficient, x.element))
    return result


def any_lane(e: Emitter, mask: Value) -> Value:
    """i1: whether any lane of an i1 vector is set."""
    return e.call(f"llvm.vector.reduce.or.v{e.width}i1", "i1", mask)


def where_rare(
    e: Emitter, mask: Value, usual: Sequence[Value], compute: Callable[[], Sequence[Value]]
) -> list[Value]:
    """`usual`, with what `compute` prints in the lanes of `mask`: behind a branch."""
    rare, before = any_lane(e, mask), e.block
    with e.when(rare):
        chosen = [e.select(mask, yes, no) for yes, no in zip(compute(), usual)]
        inside = e.block
    return [
        e.define(new.type, f"phi {new.type} [{old.text}, %{before}], [{new.text}, %{inside}]")
        for old, new in zip(usual, chosen)
    ]
