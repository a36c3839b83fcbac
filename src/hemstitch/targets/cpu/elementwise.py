"""The elementwise ops on vectors: what each prints, for each compute type, with PyTorch's meaning.

Arithmetic carries no fast-math flags, so its results equal eager's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.targets.cpu import math32, math64
from hemstitch.targets.cpu.conversions import cast
from hemstitch.targets.cpu.emitter import BITS, Emitter, Value
from hemstitch.targets.cpu.vector_arithmetic import add, copy_sign, divide, is_nan, subtract

__all__ = ["TABLES", "apply", "cast"]

Function = Callable[..., Value]  # (Emitter, one Value an operand) -> Value


def apply(e: Emitter, op: Op, dtype: DType, *operands: Value) -> Value:
    """`op` on vectors; `dtype` is the type of its operands (of the last one, for WHERE)."""
    return TABLES[dtype.compute][op](e, *operands)


# --- makers of simple rows


def _binary(instruction: str) -> Function:
    return lambda e, a, b: e.binary(instruction, a, b)


def _compare(predicate: str) -> Function:
    return lambda e, a, b: e.compare(predicate, a, b)


def _intrinsic(name: str) -> Function:
    return lambda e, x: e.intrinsic(name, x)


def _chosen_by(predicate: str) -> Function:
    """The operand for which `predicate` holds of it and the other."""
    return lambda e, a, b: e.select(e.compare(predicate, a, b), a, b)


def _identity(e: Emitter, x: Value) -> Value:
    return x


def _where(e: Emitter, condition: Value, x: Value, y: Value) -> Value:
    return e.select(condition, _fenced(e, x), _fenced(e, y))


def _fenced(e: Emitter, x: Value) -> Value:
    """`x`, behind a fence: without it LLVM folds the choice, with AVX-512, into a masked load, and
    gradients take a third longer (docs/design/code-generation-for-cpus.md)."""
    real = {32: "float", 64: "double"}.get(BITS[x.element])
    is_computed = x.type.startswith("<") and x.text.startswith("%")
    if real is None or not is_computed or not e.features.avx512:
        return x
    fenced = e.intrinsic("arithmetic.fence", e.convert("bitcast", x, real))
    return e.convert("bitcast", fenced, x.element)


# --- floats


def _sign(positive: str, negative: str) -> Function:
    """1, 0 or -1; 0 for NaN, as eager has it."""

    def function(e: Emitter, x: Value) -> Value:
        zero, one, minus = (e.constant(value, x.element) for value in (0, 1, -1))
        below = e.select(e.compare(negative, x, zero), minus, zero)
        return e.select(e.compare(positive, x, zero), one, below)

    return function


def _extreme(predicate: str) -> Function:
    """The bigger (or smaller) operand; NaN if either is; the first of equals, as eager's clamp and
    relu keep -0.0. One instruction on x86 where `b` is a constant."""

    def function(e: Emitter, a: Value, b: Value) -> Value:
        ordered = e.select(e.compare(predicate, b, a), b, a)  # a where either is NaN
        return e.select(is_nan(e, b), b, ordered)

    return function


def _reciprocal(e: Emitter, x: Value) -> Value:
    return divide(e, e.constant(1.0, x.element), x)


def _float_truncdiv(e: Emitter, a: Value, b: Value) -> Value:
    return e.intrinsic("trunc", divide(e, a, b))


def _float_rest(e: Emitter, a: Value, b: Value) -> Value:
    functions = math32.FUNCTIONS if a.element == "float" else math64.FUNCTIONS
    return functions[Op.FMOD](e, a, b)


def _has_other_sign(e: Emitter, rest: Value, b: Value) -> Value:
    """Whether a remainder of truncating division is not 0 and has not the divisor's sign."""
    zero = e.constant(0.0, b.element)
    below, rest_below = e.compare("olt", b, zero), e.compare("olt", rest, zero)
    return e.binary("and", e.compare("une", rest, zero), e.binary("xor", below, rest_below))


def _float_remainder(e: Emitter, a: Value, b: Value) -> Value:
    rest = _float_rest(e, a, b)
    return e.select(_has_other_sign(e, rest, b), add(e, rest, b), rest)


def _float_floordiv(e: Emitter, a: Value, b: Value) -> Value:
    """CPython's way, which PyTorch follows: from the exact remainder, not from a rounded a / b."""
    zero, half, one = (e.constant(value, a.element) for value in (0.0, 0.5, 1.0))
    plain = divide(e, a, b)
    rest = _float_rest(e, a, b)
    exact = divide(e, subtract(e, a, rest), b)
    exact = e.select(_has_other_sign(e, rest, b), subtract(e, exact, one), exact)
    floor = e.intrinsic("floor", exact)
    too_low = e.compare("ogt", subtract(e, exact, floor), half)
    floor = e.select(too_low, add(e, floor, one), floor)
    floor = e.select(e.compare("une", exact, zero), floor, copy_sign(e, zero, plain))
    return e.select(e.compare("oeq", b, zero), plain, floor)


# --- integers


def _negative(e: Emitter, x: Value) -> Value:
    return e.binary("sub", e.constant(0, x.element), x)


def _absolute(e: Emitter, x: Value) -> Value:
    return e.select(e.compare("slt", x, e.constant(0, x.element)), _negative(e, x), x)


def _not(e: Emitter, x: Value) -> Value:
    return e.binary("xor", x, e.constant(-1, x.element))


def _is_zero(e: Emitter, x: Value) -> Value:
    return e.compare("eq", x, e.constant(0, x.element))


def _never(e: Emitter, x: Value) -> Value:
    return e.constant(False, "i1")


def _guarded(instruction: str) -> Function:
    """An integer division that neither traps nor is poison: 0 where the divisor is 0.

    Dividing by -1 is left out too, for the least integer overflows; see `_signed_quotient`.
    """

    def function(e: Emitter, a: Value, b: Value) -> Value:
        zero, one = e.constant(0, a.element), e.constant(1, a.element)
        by_zero = unsafe = _is_zero(e, b)
        if instruction[0] == "s":
            unsafe = e.binary("or", unsafe, e.compare("eq", b, e.constant(-1, a.element)))
        result = e.binary(instruction, a, e.select(unsafe, one, b))
        return e.select(by_zero, zero, result)

    return function


def _signed_quotient(e: Emitter, a: Value, b: Value) -> Value:
    quotient = _guarded("sdiv")(e, a, b)
    return e.select(e.compare("eq", b, e.constant(-1, b.element)), _negative(e, a), quotient)


_signed_rest = _guarded("srem")


def _signs_differ(e: Emitter, rest: Value, b: Value) -> Value:
    zero = e.constant(0, b.element)
    differ = e.compare("slt", e.binary("xor", rest, b), zero)
    return e.binary("and", differ, e.compare("ne", rest, zero))


def _signed_floordiv(e: Emitter, a: Value, b: Value) -> Value:
    quotient = _signed_quotient(e, a, b)
    rest = e.binary("sub", a, e.binary("mul", quotient, b))
    inexact = e.binary("and", _signs_differ(e, rest, b), _not(e, _is_zero(e, b)))
    return e.binary("add", quotient, e.convert("sext", inexact, a.element))


def _signed_remainder(e: Emitter, a: Value, b: Value) -> Value:
    rest = _signed_rest(e, a, b)
    return e.select(_signs_differ(e, rest, b), e.binary("add", rest, b), rest)


def _shift_left(e: Emitter, a: Value, b: Value) -> Value:
    """0 where the amount is negative or too large (both are large unsigned numbers)."""
    zero, width = e.constant(0, a.element), e.constant(BITS[a.element], a.element)
    fits = e.compare("ult", b, width)
    return e.select(fits, e.binary("shl", a, e.select(fits, b, zero)), zero)


def _shift_right(instruction: str) -> Function:
    """As far as it goes where the amount is negative or too large."""

    def function(e: Emitter, a: Value, b: Value) -> Value:
        last = e.constant(BITS[a.element] - 1, a.element)
        shifted = e.binary(instruction, a, e.select(e.compare("ult", b, last), b, last))
        if instruction == "ashr":
            return shifted
        return e.select(e.compare("ugt", b, last), e.constant(0, a.element), shifted)

    return function


def _power(e: Emitter, x: Value, exponent: Value) -> Value:
    """By squaring; as many rounds as the largest exponent has bits."""
    element = x.element
    one = e.constant(1, element)
    largest = e.call(f"llvm.vector.reduce.or.v{e.width}{element}", element, exponent)
    leading = e.call(f"llvm.ctlz.{element}", element, largest, Value("false", "i1"))
    rounds = e.binary("sub", Value(str(BITS[element]), element), leading)

    def square(_: Value, carried: list[Value]) -> list[Value]:
        result, base, rest = carried
        odd = e.convert("trunc", rest, "i1")
        result = e.select(odd, e.binary("mul", result, base), result)
        return [result, e.binary("mul", base, base), e.binary("lshr", rest, one)]

    high = e.convert("zext", rounds, "i64")
    return e.loop(e.i64(0), high, e.i64(1), [one, x, exponent], square)[0]


def _signed_power(e: Emitter, x: Value, exponent: Value) -> Value:
    """A negative exponent takes 1 to 1, -1 to 1 or -1, and all other bases to 0."""
    zero, one, minus, two = (e.constant(value, x.element) for value in (0, 1, -1, 2))
    negative = e.compare("slt", exponent, zero)
    unit = e.binary("or", e.compare("eq", x, one), e.compare("eq", x, minus))
    base = e.select(e.binary("or", unit, e.compare("sge", exponent, zero)), x, zero)
    same_parity = e.binary("sub", two, e.binary("and", exponent, one))
    return _power(e, base, e.select(negative, same_parity, exponent))


# --- the tables


def _comparisons(prefix: str, equal: str, unequal: str) -> dict[Op, Function]:
    ordered = {op: _compare(prefix + op.value) for op in (Op.LT, Op.LE, Op.GT, Op.GE)}
    return ordered | {Op.EQ: _compare(equal), Op.NE: _compare(unequal)}


_ANY: dict[Op, Function] = {Op.WHERE: _where}
_FLOAT: dict[Op, Function] = _ANY | {
    Op.NEG: lambda e, x: e.fneg(x),
    Op.ABS: _intrinsic("fabs"),
    Op.SIGN: _sign("ogt", "olt"),
    Op.SQRT: _intrinsic("sqrt"),
    Op.RECIPROCAL: _reciprocal,
    Op.FLOOR: _intrinsic("floor"),
    Op.CEIL: _intrinsic("ceil"),
    Op.ROUND: _intrinsic("roundeven"),
    Op.TRUNC: _intrinsic("trunc"),
    Op.ISNAN: is_nan,
    Op.ADD: _binary("fadd"),
    Op.SUB: _binary("fsub"),
    Op.MUL: _binary("fmul"),
    Op.FMA: lambda e, x, y, z: e.fma(x, y, z),
    Op.DIV: _binary("fdiv"),
    Op.FLOORDIV: _float_floordiv,
    Op.TRUNCDIV: _float_truncdiv,
    Op.REMAINDER: _float_remainder,
    Op.MAXIMUM: _extreme("ogt"),
    Op.MINIMUM: _extreme("olt"),
    **_comparisons("o", "oeq", "une"),
}
_BITS: dict[Op, Function] = _ANY | {
    Op.NOT: _not,
    Op.AND: _binary("and"),
    Op.OR: _binary("or"),
    Op.XOR: _binary("xor"),
    Op.ISNAN: _never,
    **dict.fromkeys((Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC), _identity),
}
_INT: dict[Op, Function] = _BITS | {
    Op.NEG: _negative,
    Op.ADD: _binary("add"),
    Op.SUB: _binary("sub"),
    Op.MUL: _binary("mul"),
    Op.SHL: _shift_left,
}
_SIGNED: dict[Op, Function] = _INT | {
    Op.ABS: _absolute,
    Op.SIGN: _sign("sgt", "slt"),
    Op.FLOORDIV: _signed_floordiv,
    Op.TRUNCDIV: _signed_quotient,
    Op.FMOD: _signed_rest,
    Op.REMAINDER: _signed_remainder,
    Op.POW: _signed_power,
    Op.MAXIMUM: _chosen_by("sgt"),
    Op.MINIMUM: _chosen_by("slt"),
    Op.SHR: _shift_right("ashr"),
    **_comparisons("s", "eq", "ne"),
}
_UNSIGNED: dict[Op, Function] = _INT | {
    Op.ABS: _identity,
    Op.SIGN: lambda e, x: e.select(_is_zero(e, x), x, e.constant(1, x.element)),
    **dict.fromkeys((Op.FLOORDIV, Op.TRUNCDIV), _guarded("udiv")),
    **dict.fromkeys((Op.FMOD, Op.REMAINDER), _guarded("urem")),
    Op.POW: _power,
    Op.MAXIMUM: _chosen_by("ugt"),
    Op.MINIMUM: _chosen_by("ult"),
    Op.SHR: _shift_right("lshr"),
    **_comparisons("u", "eq", "ne"),
}
_BOOL: dict[Op, Function] = _BITS | {
    **dict.fromkeys((Op.ABS, Op.SIGN), _identity),
    **dict.fromkeys((Op.ADD, Op.MAXIMUM), _binary("or")),
    **dict.fromkeys((Op.MUL, Op.MINIMUM), _binary("and")),
    **_comparisons("u", "eq", "ne"),
}

TABLES: Mapping[DType, Mapping[Op, Function]] = MappingProxyType(
    {
        DType.BOOL: _BOOL,
        DType.U8: _UNSIGNED,
        **dict.fromkeys((DType.I8, DType.I16, DType.I32, DType.I64), _SIGNED),
        DType.F32: _FLOAT | dict(math32.FUNCTIONS),
        DType.F64: _FLOAT | dict(math64.FUNCTIONS),
    }
)
"""What each compute type can do: every op that PyTorch defines for it."""
