"""Memory of large results, used again once the program has let go of it.

A fresh large tensor costs a page fault for every 4 KiB, more than most kernels take to fill it, and
malloc gives large blocks back to the system as soon as they are freed. So the call list keeps a
hand on the last ones that it gave out. Nobody else holds a storage whose count of users is one:
then the next result may live in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

_GUARDS: Any = torch._C._dynamo.guards
empty_strided: Empty = getattr(_GUARDS, "_empty_strided_cpu", None) or (
    lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)
)
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
LEAST_BYTES = 1 << 17  # from here on malloc maps memory for each block
MOST_KEPT = 2  # a program often holds a result while it computes the next


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


# A tensor on the memory, its storage, and where the data was: a program that resizes a result or
# moves it to shared memory changes that. No class: a call looks into a few of them each time.
_Block = tuple[torch.Tensor, int, int]


class Recycler:
    """Call for a tensor of this layout, with anything in it. Safe under threads: a block that one
    looks at is out of the others' sight."""

    def __init__(self, layout: Layout) -> None:
        self._empty = fresh(layout)
        self._kept: deque[_Block] = deque()

    def __call__(self) -> torch.Tensor:
        kept = self._kept
        for _ in range(len(kept)):
            try:
                block = kept.pop()  # the last one used: it is in the nearest cache
            except IndexError:  # another thread has it
                break
            tensor, storage, place = block
            if tensor.data_ptr() != place:
                continue
            if torch._C._storage_Use_Count(storage) == 1:
                result = tensor.data  # a tensor of its own, no view
                kept.append(block)
                return result
            kept.appendleft(block)
        return self._fresh()

    def _fresh(self) -> torch.Tensor:
        result = self._empty()
        if not torch.is_inference_mode_enabled():  # its tensors cannot be used outside
            storage = torch._C._storage_address(result)  # type: ignore[attr-defined]
            self._kept.append((result.data, storage, result.data_ptr()))
        while len(self._kept) > MOST_KEPT:
            self._kept.popleft()
        return result
