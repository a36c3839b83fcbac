"""Tensors of the emulator: Triton's own, with a NumPy array for a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from testing.emulator.numerics import Array, from_bf16, to_bf16

Handle = interpreter.TensorHandle


def tensor(array: Array, dtype: Any) -> Any:
    """A block, or a scalar where the array has no axis."""
    shape = list(np.shape(array))
    handle = Handle(np.ascontiguousarray(array), dtype)  # a scalar has one axis in there
    return tl.tensor(handle, tl.block_type(dtype, shape) if shape else dtype)


def like(array: Array, dtype: Any, arguments: list[Any]) -> Any:
    """The result of an elementwise function: a scalar if all its arguments are."""
    if any(each.type.is_block() for each in arguments):
        return tensor(array, dtype)
    return tensor(np.asarray(array).reshape(()), dtype)


def is_bf16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16)


def widened(handle: Any) -> Array:
    """The values; bf16 as f32."""
    data: Array = handle.data
    return from_bf16(data) if is_bf16(handle) else data


def narrowed(values: Array, dtype: Any) -> Any:
    """A handle of this type for values as `widened` gives them."""
    return Handle(to_bf16(values), dtype) if dtype == tl.bfloat16 else Handle(values, dtype)


def numpy_type(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = interpreter._get_np_dtype(dtype)
    return found
