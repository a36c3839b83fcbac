"""Memory of large results, used again once the program has let go of it.

A fresh large tensor costs a page fault for every 4 KiB, more than most kernels take to fill it, and
malloc gives large blocks back to the system as soon as they are freed. So call lists keep a hand on
the last ones that they gave out. Nobody else holds a storage whose count of users is one: then the
next result of that size may live in it, whichever graph gives it.

What library calls give is malloc's. It is asked once to keep what is freed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

_GUARDS: Any = torch._C._dynamo.guards
empty_strided: Empty = getattr(_GUARDS, "_empty_strided_cpu", None) or (
    lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)
)
_reinterpret: Callable[[torch.Tensor, tuple[int, ...], tuple[int, ...], int], torch.Tensor]
_reinterpret = _GUARDS._reinterpret_tensor
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
LEAST_BYTES = 1 << 17  # from here on malloc maps memory for each block
# Of glibc's mallopt(3): from how many bytes it maps a block, and keeps how many at its heap's end.
THRESHOLDS = {-3: 32 << 20, -1: 256 << 20}
MOST_BORROWED = 4  # times what is needed


@cache
def keep_what_is_freed() -> None:
    """Of malloc, if it is glibc's and the program has not said otherwise: from 128 KiB on it maps
    each block, and gives the end of its heap back, until it happens to free a larger block that was
    mapped: then the borders rise. Without that each step gets the same results of library calls
    from the system, page by page."""
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda parameter, size: 0)
        for parameter, size in THRESHOLDS.items():
            mallopt(parameter, size)


def empty_strided_on(device: torch.device) -> Empty:
    """What makes a new tensor there; of several GPUs on the current one."""
    if device.type == "cpu":
        return empty_strided
    if device.type == "cuda":
        on_gpu: Empty = _GUARDS._empty_strided_cuda
        return on_gpu
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a tensor whose sizes are known. Strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def fresh(layout: Layout) -> Callable[[], torch.Tensor]:
    """What makes a new tensor each time."""
    return partial(empty_strided, layout.shape, layout.strides, layout.dtype)


def recycled(layout: Layout, borrows: bool = False) -> Site:
    """What takes memory that no one holds any more, of all results of as many bytes. `borrows`: or
    of larger ones, rather than take more."""
    extent = 1 + sum((n - 1) * step for n, step in zip(layout.shape, layout.strides))
    key = extent, layout.dtype
    pool = _POOLS.get(key)
    if pool is None:
        pool = _POOLS[key] = RecycledBlocks(extent)
    return pool.site(layout, borrows)


# A tensor on the memory, its layout, its storage, and where the data was: a program that resizes a
# result or moves it to shared memory changes that. No class: a call looks into a few of them.
_Block = tuple[torch.Tensor, Layout, int, int]


class RecycledBlocks:
    """Blocks of one size (`extent`, in elements) and type, in use or not, the last one used last.
    `sites`: the places in call lists that take from it; `layouts`: those of their results, each
    once."""

    def __init__(self, extent: int) -> None:
        self.extent = extent
        self.blocks: deque[_Block] = deque()
        self.sites: weakref.WeakSet[Site] = weakref.WeakSet()
        self.layouts: dict[Layout, Layout] = {}

    def site(self, layout: Layout, borrows: bool) -> Site:
        site = Site(self, self.layouts.setdefault(layout, layout), borrows)
        self.sites.add(site)
        weakref.finalize(site, self.trim).atexit = False
        return site

    def trim(self) -> None:
        """One more than there are sites: a program often holds a result while it makes the next."""
        alive = sum(1 for _ in self.sites)  # its length may count one that is just being dropped
        while len(self.blocks) > 1 + alive:
            with suppress(IndexError):  # other threads have them
                self.blocks.popleft()


_POOLS: weakref.WeakValueDictionary[tuple[int, torch.dtype], RecycledBlocks]
_POOLS = weakref.WeakValueDictionary()  # of the process, as malloc's are; graphs keep them alive


class Site:
    """Call for a tensor of this layout, with anything in it. Safe under threads: a block that one
    looks at is out of the others' sight."""

    def __init__(self, pool: RecycledBlocks, layout: Layout, borrows: bool) -> None:
        self._pool, self._layout, self._empty = pool, layout, fresh(layout)
        self._borrows = borrows

    def __call__(self) -> torch.Tensor:
        found = self._idle(self._pool)
        if found is None and self._borrows:
            found = self._borrowed()
        return self._fresh() if found is None else found

    def _idle(self, pool: RecycledBlocks) -> torch.Tensor | None:
        blocks = pool.blocks
        for _ in range(len(blocks)):
            try:
                block = blocks.pop()  # the last one used: it is in the nearest cache
            except IndexError:  # another thread has it
                break
            tensor, layout, storage, place = block
            if tensor.data_ptr() != place:
                continue
            if torch._C._storage_Use_Count(storage) == 1:
                if layout is not self._layout:
                    tensor = _reinterpret(tensor, self._layout.shape, self._layout.strides, 0)
                    block = tensor, self._layout, storage, place
                result = tensor.data  # a tensor of its own, no view
                blocks.append(block)
                return result
            blocks.appendleft(block)
        return None

    def _borrowed(self) -> torch.Tensor | None:
        """The smallest first."""
        own = self._pool.extent
        for extent, dtype in sorted(_POOLS.keys(), key=lambda key: key[0]):
            if dtype is self._layout.dtype and own < extent <= MOST_BORROWED * own:
                pool = _POOLS.get((extent, dtype))
                found = None if pool is None else self._idle(pool)
                if found is not None:
                    return found
        return None

    def _fresh(self) -> torch.Tensor:
        result = self._empty()
        if not torch.is_inference_mode_enabled():  # its tensors cannot be used outside
            storage = torch._C._storage_address(result)  # type: ignore[attr-defined]
            self._pool.blocks.append((result.data, self._layout, storage, result.data_ptr()))
            self._pool.trim()
        return result
