"""The types of a printed kernel's arguments, as Triton's compiler wants them told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

from hemstitch.codegen.triton.kernel import SEMAPHORE, Program
from hemstitch.ir.types import DType

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


def signature(program: Program, wide: Sequence[bool] = ()) -> dict[str, str]:
    """By name, in the order of the arguments. `wide`: which sizes need 64 bits; else none."""
    found = {b.name: POINTERS[b.dtype] for b in (*program.parameters, *program.scratch)}
    if program.has_semaphore:
        found[SEMAPHORE] = POINTERS[DType.I32]
    sizes = zip_longest(program.sizes, wide, fillvalue=False)
    return found | {str(size): "i64" if is_wide else "i32" for size, is_wide in sizes}
