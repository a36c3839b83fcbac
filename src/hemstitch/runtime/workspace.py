"""Memory of intermediates: blocks that graphs share, one call at a time.

An allocation costs more than most kernels, so blocks are retained between calls. Graphs run one
after the other, forward before backward, and share a block; only concurrent calls (threads,
reentrance) have separate blocks.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import torch

from hemstitch.machine.cpu_numbers import CPU


@dataclass(frozen=True, slots=True)
class ArenaView:
    """A typed view of the arena."""

    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """From the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        steps = ((size - 1) * step for size, step in zip(self.shape, self.strides))
        return (1 + sum(steps)) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class ArenaLayout:
    """The views and the scratch that a graph needs, by offsets in bytes."""

    views: tuple[ArenaView, ...]
    scratch: tuple[int, ...]
    taken: int  # bytes

    @property
    def bytes(self) -> int:
        """With a cache line for the alignment of the first view."""
        return self.taken + CPU.line_bytes


@dataclass(frozen=True, slots=True)
class Arena:
    """A graph's views in memory. `scratch`: addresses of its kernels' scratch."""

    views: tuple[torch.Tensor, ...]
    scratch: tuple[int, ...]


class Block:
    """Memory, and the arena of each graph that has used it."""

    def __init__(self, bytes_: int) -> None:
        self.bytes = bytes_
        with torch.inference_mode(False):  # inference tensors cannot be written to outside of it
            self._memory = torch.empty(bytes_, dtype=torch.uint8)
        self._arenas: weakref.WeakKeyDictionary[ArenaLayout, Arena] = weakref.WeakKeyDictionary()

    def arena(self, layout: ArenaLayout) -> Arena:
        """Cached for each layout."""
        arena = self._arenas.get(layout)
        if arena is None:
            arena = self._arenas[layout] = self._build_arena(layout)
        return arena

    def _build_arena(self, layout: ArenaLayout) -> Arena:
        start = -self._memory.data_ptr() % CPU.line_bytes
        with torch.inference_mode(False):
            views = tuple(_tensor_view(self._memory, start, view) for view in layout.views)
        first = self._memory.data_ptr() + start
        return Arena(views, tuple(first + offset for offset in layout.scratch))


class BlockPool:
    """Free blocks: as many as there have been concurrent calls, none larger than the live graphs
    need. `take` and `give_back` are atomic."""

    def __init__(self) -> None:
        self.free: deque[Block] = deque()
        self._layouts: weakref.WeakSet[ArenaLayout] = weakref.WeakSet()

    def layout(
        self, views: tuple[ArenaView, ...], scratch: tuple[int, ...], taken: int
    ) -> ArenaLayout:
        """Register the layout of a graph, until it is dropped."""
        layout = ArenaLayout(views, scratch, taken)
        self._layouts.add(layout)
        weakref.finalize(layout, self._trim).atexit = False
        return layout

    def take(self, layout: ArenaLayout) -> Block:
        """The most recently used block, or a new one that replaces it if it is too small."""
        try:
            block = self.free.pop()
        except IndexError:
            return Block(layout.bytes)
        if block.bytes >= layout.bytes:
            return block
        del block  # before the larger one is allocated
        return Block(layout.bytes)

    def give_back(self, block: Block) -> None:
        self.free.append(block)

    def _trim(self) -> None:
        most = max((layout.bytes for layout in self._layouts), default=0)
        for _ in range(len(self.free)):
            try:
                block = self.free.popleft()
            except IndexError:  # another thread took it
                return
            if block.bytes <= most:
                self.free.append(block)


BLOCKS = BlockPool()  # of the process


def _tensor_view(memory: torch.Tensor, start: int, view: ArenaView) -> torch.Tensor:
    begin = start + view.offset
    flat = memory[begin : begin + view.bytes].view(view.dtype)
    return flat.as_strided(view.shape, view.strides)
