"""The types of a printed kernel's arguments, as Triton's compiler wants them told."""

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
    """By name, in the order of the arguments. Sizes have 64 bits, however small they are: so do
    their products, numbers of tiles and of rows, which Triton would compute in 32 bits else."""
    found = {b.name: POINTERS[b.dtype] for b in (*program.parameters, *program.scratch)}
    if program.has_semaphore:
        found[SEMAPHORE] = POINTERS[DType.I32]
    return found | {str(size): "i64" for size in program.sizes}
