"""Where intermediates lie: one arena a graph, shared by tensors that are never alive together.

A fresh allocation costs more than most kernels do, so arenas are kept between calls; each call in
flight has one for itself (threads, re-entrance).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hemstitch.kernel.placement import LINE


@dataclass(frozen=True, slots=True)
class View:
    """A typed window of the arena."""

    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Arena:
    """`memory` keeps `views` alive; `scratch`: address of the kernels' scratch."""

    memory: torch.Tensor
    views: tuple[torch.Tensor, ...]
    scratch: int


class ArenaPool:
    """Arenas not in use. Taking and giving back are atomic."""

    def __init__(self, views: Sequence[View], tensor_bytes: int, scratch_bytes: int) -> None:
        self._views = tuple(views)
        self._tensor_bytes = tensor_bytes
        self.total_bytes = tensor_bytes + scratch_bytes + LINE
        self._free: deque[Arena] = deque()

    def take(self) -> Arena:
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def give_back(self, arena: Arena) -> None:
        self._free.append(arena)

    def _make(self) -> Arena:
        memory = torch.empty(self.total_bytes, dtype=torch.uint8)
        start = -memory.data_ptr() % LINE
        views = tuple(_window(memory, start, view) for view in self._views)
        return Arena(memory, views, memory.data_ptr() + start + self._tensor_bytes)


def _window(memory: torch.Tensor, start: int, view: View) -> torch.Tensor:
    extent = 1 + sum((size - 1) * step for size, step in zip(view.shape, view.strides))
    count = 0 if 0 in view.shape else extent
    begin = start + view.offset
    flat = memory[begin : begin + count * view.dtype.itemsize].view(view.dtype)
    return flat.as_strided(view.shape, view.strides)
