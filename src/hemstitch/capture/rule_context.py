"""What a rule knows of the op that it translates, and how it declines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hemstitch.capture.expressions import Expr, Number, constant
from hemstitch.capture.symbolic_sizes import Sizes
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, SymbolicDim
from hemstitch.ir.graph import Node
from hemstitch.ir.ops import highest, lowest
from hemstitch.ir.types import DType, TensorType
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES


class NotHandled(Exception):
    """Raised by a rule for arguments it has no translation for: the op becomes a library call."""


@dataclass(frozen=True, slots=True)
class Context:
    """One op being translated. `results`: the types it had when traced (None: not a tensor).
    `for_gpu`: kernels run on one."""

    sizes: Sizes
    results: tuple[TensorType | None, ...]
    for_gpu: bool = False

    @property
    def builder(self) -> Builder:
        return self.sizes.builder

    @property
    def result(self) -> TensorType:
        first = self.results[0]
        assert first is not None
        return first

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.result.shape

    @property
    def dtype(self) -> DType:
        return self.result.dtype

    def is_part_of(self, *names: str) -> bool:
        """Whether a decomposition of one of these ATen operations made it."""
        origin = self.builder.origin
        return origin is not None and origin.op.partition(".")[2].partition(".")[0] in names

    def constant(self, value: Number, dtype: DType, shape: tuple[Dim, ...] = ()) -> Expr:
        return constant(self.builder, value, dtype, shape)

    def number(self, value: Any, dtype: DType) -> Expr:
        """A constant that the user wrote. Declines one that the type cannot hold: the library
        refuses it as eager does."""
        if not isinstance(value, SymbolicDim) and not can_hold(dtype, value):
            raise NotHandled
        return self.constant(value, dtype)

    def iota(self, shape: tuple[Dim, ...], axis: int) -> Expr:
        return Expr(self.builder, self.builder.iota(shape, axis))

    def is_never_negative(self, size: Dim | Expr) -> bool:
        """Declines a size that is read from a tensor: nothing can be laid out by it."""
        if isinstance(size, Expr):
            raise NotHandled
        return self.sizes.is_never_negative(size)

    def value(self, node: Node) -> Expr:
        return Expr(self.builder, node)


def can_hold(dtype: DType, value: bool | int | float) -> bool:
    """Whether torch converts it: not what overflows, unless it is infinite to a float, and of what
    is below 0 to an unsigned type only an integer."""
    if dtype is DType.BOOL or isinstance(value, bool):
        return True
    if dtype.is_float:
        return not math.isfinite(value) or abs(value) <= torch.finfo(TORCH_DTYPES[dtype]).max
    wraps = dtype is DType.U8 and isinstance(value, int)
    return (-highest(dtype) if wraps else lowest(dtype)) <= value <= highest(dtype)


Rule = Callable[..., Any]  # (Context, *arguments, **keywords) -> Value, or a sequence of them


def axis_of(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """A dim argument as axes: None or empty means all."""
    if axes is None or axes == ():
        return tuple(range(rank))
    listed = axes if isinstance(axes, tuple) else (axes,)
    return tuple(axis_of(axis, rank) for axis in listed) if rank else ()
