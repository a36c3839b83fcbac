"""Large results reuse the memory of earlier ones that the program has dropped.

A fresh large tensor costs a page fault for every 4 KiB, more than most kernels take to fill it, and
malloc returns large blocks to the system as soon as they are freed. So call lists hold a reference
to the last results. A storage with a use count of one is referenced by nobody else: the next result
of that size, of any graph, takes it.

Results of library calls come from malloc, whose thresholds are raised once.
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
LEAST_BYTES = 1 << 17  # malloc's default threshold of mmap
# Of glibc's mallopt(3): M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, in bytes.
THRESHOLDS = {-3: 32 << 20, -1: 256 << 20}
MOST_BORROWED = 4  # times the bytes of the result


@cache
def raise_malloc_thresholds() -> None:
    """Of glibc's malloc, unless the environment sets them. By default it maps each block of 128 KiB
    or more and trims its heap, until the program frees a larger mapped block. Then every step takes
    page faults for the same results of library calls."""
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda parameter, size: 0)
        for parameter, size in THRESHOLDS.items():
            mallopt(parameter, size)


def empty_strided_on(device: torch.device) -> Empty:
    """`empty_strided` for a device; with several GPUs, for the current one."""
    if device.type == "cpu":
        return empty_strided
    if device.type == "cuda":
        on_gpu: Empty = _GUARDS._empty_strided_cuda
        return on_gpu
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor of static sizes. Strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def plain_allocator(layout: Layout) -> Callable[[], torch.Tensor]:
    """Allocates a new tensor in each call."""
    return partial(empty_strided, layout.shape, layout.strides, layout.dtype)


def recycling_allocator(layout: Layout, borrows: bool = False) -> AllocationSite:
    """Takes the memory of dead results of the same size. `borrows`: or that of larger ones, before
    it allocates."""
    extent = 1 + sum((n - 1) * step for n, step in zip(layout.shape, layout.strides))
    key = extent, layout.dtype
    pool = _POOLS.get(key)
    if pool is None:
        pool = _POOLS[key] = RecycledBlocks(extent)
    return pool.site(layout, borrows)


# A tensor on the memory, its layout, its storage, and its data pointer, which changes if the
# program resizes the result or moves it to shared memory. A tuple, since it is on the path of each
# call.
_Block = tuple[torch.Tensor, Layout, int, int]


class RecycledBlocks:
    """Blocks of one size (`extent`, in elements) and type, in use or not, most recently used last.
    `sites`: the allocation sites of call lists that share them; `layouts`: the distinct layouts of
    their results."""

    def __init__(self, extent: int) -> None:
        self.extent = extent
        self.blocks: deque[_Block] = deque()
        self.sites: weakref.WeakSet[AllocationSite] = weakref.WeakSet()
        self.layouts: dict[Layout, Layout] = {}

    def site(self, layout: Layout, borrows: bool) -> AllocationSite:
        site = AllocationSite(self, self.layouts.setdefault(layout, layout), borrows)
        self.sites.add(site)
        weakref.finalize(site, self.trim).atexit = False
        return site

    def trim(self) -> None:
        """To one more block than there are sites: a program often holds a result while it computes
        the next."""
        alive = sum(1 for _ in self.sites)  # `len` may count a site that is being dropped
        while len(self.blocks) > 1 + alive:
            with suppress(IndexError):  # another thread took it
                self.blocks.popleft()


_POOLS: weakref.WeakValueDictionary[tuple[int, torch.dtype], RecycledBlocks]
_POOLS = weakref.WeakValueDictionary()  # of the process; call lists keep them alive


class AllocationSite:
    """Called for an uninitialised tensor of this layout. Thread-safe: a block is popped from the
    pool while a thread examines it."""

    def __init__(self, pool: RecycledBlocks, layout: Layout, borrows: bool) -> None:
        self._pool, self._layout, self._empty = pool, layout, plain_allocator(layout)
        self._borrows = borrows

    def __call__(self) -> torch.Tensor:
        tensor = self._idle(self._pool)
        if tensor is None and self._borrows:
            tensor = self._borrowed()
        return self._fresh() if tensor is None else tensor

    def _idle(self, pool: RecycledBlocks) -> torch.Tensor | None:
        blocks = pool.blocks
        for _ in range(len(blocks)):
            try:
                block = blocks.pop()  # the most recently used one is likely to be in a cache
            except IndexError:  # another thread took it
                break
            tensor, layout, storage, place = block
            if tensor.data_ptr() != place:
                continue
            if torch._C._storage_Use_Count(storage) == 1:
                if layout is not self._layout:
                    tensor = _reinterpret(tensor, self._layout.shape, self._layout.strides, 0)
                    block = tensor, self._layout, storage, place
                result = tensor.data  # a separate tensor, no view
                blocks.append(block)
                return result
            blocks.appendleft(block)
        return None

    def _borrowed(self) -> torch.Tensor | None:
        """A dead block of a larger pool, the smallest first."""
        own = self._pool.extent
        # A list: another thread may create a pool during an iteration over `_POOLS`.
        pools = sorted(_POOLS.valuerefs(), key=lambda reference: reference.key[0])
        for reference in pools:
            extent, dtype = reference.key
            if dtype is self._layout.dtype and own < extent <= MOST_BORROWED * own:
                pool = reference()
                tensor = None if pool is None else self._idle(pool)
                if tensor is not None:
                    return tensor
        return None

    def _fresh(self) -> torch.Tensor:
        result = self._empty()
        if (
            not torch.is_inference_mode_enabled()
        ):  # inference tensors cannot be reused outside of it
            storage = torch._C._storage_address(result)  # type: ignore[attr-defined]
            self._pool.blocks.append((result.data, self._layout, storage, result.data_ptr()))
            self._pool.trim()
        return result
