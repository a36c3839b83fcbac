"""Element types as Triton names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hemstitch.ir.types import DType

NAMES: Mapping[DType, str] = MappingProxyType(
    {
        DType.BOOL: "tl.int1",
        DType.U8: "tl.uint8",
        DType.I8: "tl.int8",
        DType.I16: "tl.int16",
        DType.I32: "tl.int32",
        DType.I64: "tl.int64",
        DType.F16: "tl.float16",
        DType.BF16: "tl.bfloat16",
        DType.F32: "tl.float32",
        DType.F64: "tl.float64",
    }
)


def literal(value: bool | int | float, dtype: DType) -> str:
    """A number of this type as Python text that means the same inside a kernel."""
    if dtype.is_float:
        number = float(value)
        return repr(number) if abs(number) < float("inf") else f'float("{number}")'
    return repr(bool(value) if dtype is DType.BOOL else int(value))


def cast(text: str, source: DType, target: DType, how: str = "") -> str:
    """PyTorch's `x.to(target)`; half types are rounded to, and kept as f32. `how`: the function
    that does so (see half_rounding.py)."""
    if target is DType.BOOL:
        return text if source is DType.BOOL else f"({text} != 0)"
    if how:
        return f"{how}({text})"
    if target.compute is not target:
        return f"{text}.to({NAMES[target]}).to({NAMES[target.compute]})"
    if source.is_float and not target.is_float and target is not DType.I64:
        return f"{text}.to(tl.int32).to({NAMES[target]})"
    return text if source.compute is target else f"{text}.to({NAMES[target]})"
