"""Where a kernel's scratch lies: shared by the code and its caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hemstitch.ir.dims import Dim, choice, quotient
from hemstitch.kernel.lifetime import task_lifetimes
from hemstitch.kernel.nodes import THREADS, Buffer, Kernel, Role

LINE = 64  # bytes of a cache line; every buffer starts on one
MOST_LANES = 16  # elements of a vector; task buffers have room for whole ones


@dataclass(frozen=True, slots=True)
class ScratchLayout:
    """`offset` in bytes of each scratch buffer; a TASK buffer has one copy every `stride` bytes."""

    offset: dict[Buffer, Dim]
    stride: dict[Buffer, Dim]
    total: Dim


def scratch_layout(kernel: Kernel, threads: int) -> ScratchLayout:
    """Room for at most `threads` tasks. Task buffers that never live together share a slot."""
    offset: dict[Buffer, Dim] = {}
    stride: dict[Buffer, Dim] = {}
    end: Dim = 0
    for slot in _slots(kernel):
        room = _largest(_lines(_vectors(buffer.size) * buffer.dtype.bytes) for buffer in slot)
        for buffer in slot:
            offset[buffer], stride[buffer] = end, room
        end = end + room * threads
    for buffer in kernel.buffers:
        if buffer.role is Role.SHARED:
            offset[buffer] = end
            end = end + _lines(_for_threads(buffer.size, threads) * buffer.dtype.bytes)
    return ScratchLayout(offset, stride, end)


def _slots(kernel: Kernel) -> list[list[Buffer]]:
    """Task buffers by the memory they share, each in the first slot that is free by then and can
    be compared in size."""
    lives = task_lifetimes(kernel)
    slots: list[list[Buffer]] = []
    for buffer in sorted(lives, key=lambda buffer: lives[buffer]):
        first, _ = lives[buffer]
        free = (
            slot
            for slot in slots
            if lives[slot[-1]][1] < first and _is_comparable(slot[-1].size, buffer.size)
        )
        slot = next(free, None)
        if slot is None:
            slots.append([buffer])
        else:
            slot.append(buffer)
    return slots


def _is_comparable(a: Dim, b: Dim) -> bool:
    return a == b or (isinstance(a, int) and isinstance(b, int))


def _largest(sizes: Iterable[Dim]) -> Dim:
    """Of sizes that are all known, or all equal but for the element's bytes."""
    return choice("max", sizes)


def _lines(size: Dim) -> Dim:
    return quotient(size + (LINE - 1), LINE) * LINE


def _vectors(size: Dim) -> Dim:
    return quotient(size + (MOST_LANES - 1), MOST_LANES) * MOST_LANES


def _for_threads(size: Dim, threads: int) -> Dim:
    """`size` with the number of tasks put in."""
    if isinstance(size, int):
        return size
    per_task = quotient(size, THREADS)
    return per_task * threads if per_task * THREADS == size else size
