"""The element types of the IR and torch's, in both directions."""

from __future__ import annotations

import torch

from hemstitch.ir.types import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
_FROM_TORCH = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}


def from_torch(dtype: torch.dtype) -> DType:
    """OPAQUE for types without arithmetic in the compiler."""
    return _FROM_TORCH.get(dtype, DType.OPAQUE)
