"""The types of a printed kernel's arguments, in Triton's notation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hemstitch.ir.types import DType
from hemstitch.targets.gpu.kernel import SEMAPHORE, TritonProgram

POINTERS: Mapping[DType, str] = MappingProxyType(
    {
        DType.BOOL: "*i1",
        DType.U8: "*u8",
        DType.I8: "*i8",
        DType.I16: "*i16",
        DType.I32: "*i32",
        DType.I64: "*i64",
        DType.F16: "*fp16",
        DType.BF16: "*bf16",
        DType.F32: "*fp32",
        DType.F64: "*fp64",
    }
)


def signature(program: TritonProgram) -> dict[str, str]:
    """By name, in the order of the arguments. Sizes are i64, so that their products, such as the
    numbers of tiles and rows, are computed in 64 bits."""
    types = {b.name: POINTERS[b.dtype] for b in (*program.parameters, *program.scratch)}
    if program.has_semaphore:
        types[SEMAPHORE] = POINTERS[DType.I32]
    return types | {str(size): "i64" for size in program.sizes}
