"""Element types and tensor types of the graph IR and the kernel IR."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hemstitch.ir.dims import Dim, product


class TypeKind(Enum):
    """What arithmetic an element type follows."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    OPAQUE = "opaque"


class DType(Enum):
    """Element types. `OPAQUE`: those that only library calls touch (complex, fp8, ...)."""

    BOOL = "bool"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    OPAQUE = "opaque"

    def __str__(self) -> str:
        return self.value

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    @property
    def kind(self) -> TypeKind:
        return _KIND[self]

    @property
    def is_float(self) -> bool:
        return self.kind is TypeKind.FLOAT

    @property
    def compute(self) -> DType:
        """The type arithmetic is done in: half types compute in f32 and round when stored."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self


_BYTES = {
    DType.BOOL: 1,
    DType.U8: 1,
    DType.I8: 1,
    DType.I16: 2,
    DType.I32: 4,
    DType.I64: 8,
    DType.F16: 2,
    DType.BF16: 2,
    DType.F32: 4,
    DType.F64: 8,
    DType.OPAQUE: 0,
}
_KIND = {
    DType.BOOL: TypeKind.BOOL,
    DType.U8: TypeKind.INT,
    DType.I8: TypeKind.INT,
    DType.I16: TypeKind.INT,
    DType.I32: TypeKind.INT,
    DType.I64: TypeKind.INT,
    DType.F16: TypeKind.FLOAT,
    DType.BF16: TypeKind.FLOAT,
    DType.F32: TypeKind.FLOAT,
    DType.F64: TypeKind.FLOAT,
    DType.OPAQUE: TypeKind.OPAQUE,
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Logical shape and element type. Where the bytes lie is not part of the type."""

    shape: tuple[Dim, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        return self.size * self.dtype.bytes


def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides in elements; PyTorch counts a dimension of size 0 as 1."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if size != 0 else 1)
    return tuple(reversed(strides))
