"""Where intermediates lie: memory that graphs share, one call at a time.

A fresh allocation costs more than most kernels do, so the memory is kept between calls. Graphs run
one after the other, forward before backward, and what one no longer needs serves the next; only
calls that are in flight together (threads, re-entrance) have memory of their own each.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import torch

from hemstitch.kernel_ir.placement import LINE


@dataclass(frozen=True, slots=True)
class ArenaView:
    """A typed window of the arena."""

    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """From the first element to behind the last."""
        if 0 in self.shape:
            return 0
        steps = ((size - 1) * step for size, step in zip(self.shape, self.strides))
        return (1 + sum(steps)) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class ArenaLayout:
    """What a graph needs: its windows, and its kernels' scratch, by offsets in bytes."""

    views: tuple[ArenaView, ...]
    scratch: tuple[int, ...]
    taken: int  # bytes

    @property
    def bytes(self) -> int:
        """At most a line is lost until the first window is aligned."""
        return self.taken + LINE


@dataclass(frozen=True, slots=True)
class Arena:
    """A graph's windows in memory. `scratch`: addresses of its kernels' scratch."""

    views: tuple[torch.Tensor, ...]
    scratch: tuple[int, ...]


class Block:
    """Memory, and how each graph that has used it sees it."""

    def __init__(self, bytes_: int) -> None:
        self.bytes = bytes_
        with torch.inference_mode(False):  # its tensors cannot be written to outside
            self._memory = torch.empty(bytes_, dtype=torch.uint8)
        self._arenas: weakref.WeakKeyDictionary[ArenaLayout, Arena] = weakref.WeakKeyDictionary()

    def arena(self, layout: ArenaLayout) -> Arena:
        """Made when a graph first asks."""
        arena = self._arenas.get(layout)
        if arena is None:
            arena = self._arenas[layout] = self._made(layout)
        return arena

    def _made(self, layout: ArenaLayout) -> Arena:
        start = -self._memory.data_ptr() % LINE
        with torch.inference_mode(False):
            views = tuple(_window(self._memory, start, view) for view in layout.views)
        first = self._memory.data_ptr() + start
        return Arena(views, tuple(first + offset for offset in layout.scratch))


class BlockPool:
    """Blocks not in use: as many as calls have been in flight together, none larger than what
    the graphs that live need. Taking and giving back are atomic."""

    def __init__(self) -> None:
        self.free: deque[Block] = deque()
        self._layouts: weakref.WeakSet[ArenaLayout] = weakref.WeakSet()

    def layout(
        self, views: tuple[ArenaView, ...], scratch: tuple[int, ...], taken: int
    ) -> ArenaLayout:
        """Of a graph that will take blocks from here, until it is dropped."""
        layout = ArenaLayout(views, scratch, taken)
        self._layouts.add(layout)
        weakref.finalize(layout, self._trim).atexit = False
        return layout

    def take(self, layout: ArenaLayout) -> Block:
        """The last block used, or in its place one that is large enough."""
        try:
            block = self.free.pop()
        except IndexError:
            return Block(layout.bytes)
        if block.bytes >= layout.bytes:
            return block
        del block  # before there is another
        return Block(layout.bytes)

    def give_back(self, block: Block) -> None:
        self.free.append(block)

    def _trim(self) -> None:
        most = max((layout.bytes for layout in self._layouts), default=0)
        for _ in range(len(self.free)):
            try:
                block = self.free.popleft()
            except IndexError:  # another thread has it
                return
            if block.bytes <= most:
                self.free.append(block)


BLOCKS = BlockPool()  # of the process, as malloc's is


def _window(memory: torch.Tensor, start: int, view: ArenaView) -> torch.Tensor:
    begin = start + view.offset
    flat = memory[begin : begin + view.bytes].view(view.dtype)
    return flat.as_strided(view.shape, view.strides)
