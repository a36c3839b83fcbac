"""Conversions between element types, and between how elements are stored and computed with.

Half types are computed with as f32; a value of such a type is an f32 that the type can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hemstitch.ir.functions import round_to
from hemstitch.ir.types import DType, TypeKind
from hemstitch.targets.cpu.emitter import BITS, Emitter, Value
from hemstitch.targets.cpu.vector_arithmetic import (
    bits,
    from_bits,
    i32,
    is_nan,
    magnitude,
    where_rare,
)

COMPUTE: Mapping[DType, str] = MappingProxyType(
    {
        DType.BOOL: "i1",
        DType.U8: "i8",
        DType.I8: "i8",
        DType.I16: "i16",
        DType.I32: "i32",
        DType.I64: "i64",
        DType.F16: "float",
        DType.BF16: "float",
        DType.F32: "float",
        DType.F64: "double",
    }
)
STORAGE: Mapping[DType, str] = MappingProxyType(
    {**COMPUTE, DType.BOOL: "i8", DType.F16: "half", DType.BF16: "i16"}
)

_BFLOAT_NAN = 0x7FC00000


def constant(e: Emitter, value: float | int | bool, dtype: DType) -> Value:
    """What the type can hold of the value, in every lane."""
    return e.constant(round_to(float(value), dtype) if dtype.is_float else value, COMPUTE[dtype])


def cast(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    """PyTorch's `x.to(target)`, on compute representations."""
    x = _ROUTES[source.kind, target.kind](e, x, source, target)
    if source is target:
        return x
    if target is DType.BF16:
        return from_bits(e, _round_to_bfloat(e, x))
    if target is DType.F16:
        return e.convert("fpext", e.convert("fptrunc", x, "half"), "float")
    return x


def to_storage(e: Emitter, x: Value, dtype: DType) -> Value:
    """What to write to memory: bool as bytes 0 and 1, halves of what a half type can hold."""
    match dtype:
        case DType.BOOL:
            return e.convert("zext", x, "i8")
        case DType.F16:
            return e.convert("fptrunc", x, "half")
        case DType.BF16:
            return e.convert("trunc", e.binary("lshr", bits(e, x), i32(e, 16)), "i16")
        case _:
            return x


def from_storage(e: Emitter, x: Value, dtype: DType) -> Value:
    match dtype:
        case DType.BOOL:
            return e.compare("ne", x, e.constant(0, "i8"))
        case DType.F16:
            return e.convert("fpext", x, "float")
        case DType.BF16:
            return from_bits(e, e.binary("shl", e.convert("zext", x, "i32"), i32(e, 16)))
        case _:
            return x


def _round_to_bfloat(e: Emitter, x: Value) -> Value:
    """The bits of the bfloat nearest to an f32, in the high half. In integers, because the
    hosts' own instructions flush denormals."""
    raw = bits(e, x)
    last = e.binary("and", e.binary("lshr", raw, i32(e, 16)), i32(e, 1))
    rounded = e.binary("add", raw, e.binary("add", last, i32(e, 0x7FFF)))
    rounded = e.binary("and", rounded, i32(e, -0x10000))
    return e.select(is_nan(e, x), i32(e, _BFLOAT_NAN), rounded)


# --- routes between kinds


def _same(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    return x


def _bool_to_int(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    return e.convert("zext", x, COMPUTE[target])


def _bool_to_float(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    element = COMPUTE[target]
    return e.select(x, e.constant(1.0, element), e.constant(0.0, element))


def _int_to_bool(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    return e.compare("ne", x, e.constant(0, x.element))


def _int_to_int(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    element = COMPUTE[target]
    if BITS[element] < BITS[x.element]:
        return e.convert("trunc", x, element)
    return e.convert("zext" if source is DType.U8 else "sext", x, element)


def _int_to_float(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    return e.convert("uitofp" if source is DType.U8 else "sitofp", x, COMPUTE[target])


def _float_to_bool(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    return e.compare("une", x, e.constant(0.0, x.element))


def _float_to_int(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    """Towards zero. What does not fit becomes the least integer, as x86 has it; types
    narrower than 32 bits wrap, f64 to u8 by way of 64 bits, as eager has it."""
    is_64_bit = target is DType.I64 or (source is DType.F64 and target is DType.U8)
    if not is_64_bit:
        return e.convert("trunc", _truncated(e, x, "i32"), COMPUTE[target])
    if e.features.avx512:
        return e.convert("trunc", _truncated(e, x, "i64"), COMPUTE[target])
    # AVX2 makes no i64 of a vector: what 32 bits do not hold is rare.
    large = e.compare("uge", magnitude(e, x), e.constant(2.0**31, x.element))
    small = e.convert("sext", _fitting(e, x, large, "i32"), "i64")
    (result,) = where_rare(e, large, (small,), lambda: (_truncated(e, x, "i64"),))
    return e.convert("trunc", result, COMPUTE[target])


def _truncated(e: Emitter, x: Value, element: str) -> Value:
    least = -(1 << BITS[element] - 1)
    large = e.compare("uge", magnitude(e, x), e.constant(float(-least), x.element))
    return e.select(large, e.constant(least, element), _fitting(e, x, large, element))


def _fitting(e: Emitter, x: Value, overflow: Value, element: str) -> Value:
    return e.convert("fptosi", e.select(overflow, e.constant(0.0, x.element), x), element)


def _float_to_float(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    return e.convert("fpext" if x.element == "float" else "fptrunc", x, COMPUTE[target])


_ROUTES: Mapping[tuple[TypeKind, TypeKind], Callable[[Emitter, Value, DType, DType], Value]] = (
    MappingProxyType(
        {
            (TypeKind.BOOL, TypeKind.BOOL): _same,
            (TypeKind.BOOL, TypeKind.INT): _bool_to_int,
            (TypeKind.BOOL, TypeKind.FLOAT): _bool_to_float,
            (TypeKind.INT, TypeKind.BOOL): _int_to_bool,
            (TypeKind.INT, TypeKind.INT): _int_to_int,
            (TypeKind.INT, TypeKind.FLOAT): _int_to_float,
            (TypeKind.FLOAT, TypeKind.BOOL): _float_to_bool,
            (TypeKind.FLOAT, TypeKind.INT): _float_to_int,
            (TypeKind.FLOAT, TypeKind.FLOAT): _float_to_float,
        }
    )
)
