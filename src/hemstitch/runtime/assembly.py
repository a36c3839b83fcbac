"""What a compiled graph is made of, as the driver hands it to the runtime: launches, the memory
that they need, and the Python text that calls them in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hemstitch.ir.dims import Dim
from hemstitch.ir.types import DType
from hemstitch.runtime.recycling import Layout
from hemstitch.stitching.group import Tensor


@dataclass(frozen=True, slots=True)
class Launch:
    """What runs a step of the plan: called with (*tensors, *sizes, scratch address), each tensor
    from the element in `places` on. `failure`: why it is no kernel that was to be one."""

    function: Callable[..., object]
    tensors: tuple[Tensor, ...]
    sizes: tuple[Dim, ...]
    scratch_bytes: Dim
    places: tuple[int, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class IntermediateView:
    """A view of an intermediate: which one, and how it is seen. Offset in elements."""

    slot: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: DType


@dataclass(slots=True)
class Slot:
    """An intermediate in the arena: its bytes, and the steps between which it lives."""

    bytes: Dim
    first: int
    last: int


@dataclass(slots=True)
class Assembly:
    """`source` defines `run(args, v=(), p=())`: arguments, windows, addresses of scratch. `fixed`
    are its global names that never change, `sizes` those that follow from the symbols, `large`
    those that make a large result each."""

    source: str
    fixed: dict[str, object]
    sizes: dict[str, Dim | tuple[Dim, ...]]
    slots: list[Slot]
    windows: list[IntermediateView]
    scratch: list[Slot]
    large: dict[str, Layout]
    device: torch.device
