"""The parts of a compiled graph, which the driver passes to the runtime: launches, the memory that
they need, and the Python text that calls them in order."""

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
    """Runs a step of the plan: `function(*tensors, *sizes, scratch address)`. `places`: the first
    element of each tensor that is passed. `failure`: why this is a library form and no kernel."""

    function: Callable[..., object]
    tensors: tuple[Tensor, ...]
    sizes: tuple[Dim, ...]
    scratch_bytes: Dim
    places: tuple[int, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class IntermediateView:
    """A view of the intermediate in `slot`. Offset in elements."""

    slot: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: DType


@dataclass(slots=True)
class Slot:
    """An intermediate in the arena: its bytes, and the first and the last step of its lifetime."""

    bytes: Dim
    first: int
    last: int


@dataclass(slots=True)
class Assembly:
    """`source` defines `run(args, v=(), p=())`: arguments, views of intermediates, addresses of
    scratch. Its global names: `fixed` are constant, `sizes` depend on the symbols, `large` are
    allocators of one large result each."""

    source: str
    fixed: dict[str, object]
    sizes: dict[str, Dim | tuple[Dim, ...]]
    slots: list[Slot]
    views: list[IntermediateView]
    scratch: list[Slot]
    large: dict[str, Layout]
    device: torch.device
