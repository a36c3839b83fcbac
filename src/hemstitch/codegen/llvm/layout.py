"""Where a kernel's scratch lies: shared by the code and its caller."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.ir.dims import Dim, quotient
from hemstitch.kernel.nodes import THREADS, Buffer, Kernel, Role

LINE = 64  # bytes of a cache line; every buffer starts on one


@dataclass(frozen=True, slots=True)
class ScratchLayout:
    """`offset` in bytes of each scratch buffer; a TASK buffer has one copy every `stride` bytes."""

    offset: dict[Buffer, Dim]
    stride: dict[Buffer, Dim]
    total: Dim


def scratch_layout(kernel: Kernel, threads: int) -> ScratchLayout:
    """Room for at most `threads` tasks."""
    offset: dict[Buffer, Dim] = {}
    stride: dict[Buffer, Dim] = {}
    end: Dim = 0
    for buffer in kernel.buffers:
        if buffer.role is Role.TASK:
            offset[buffer], stride[buffer] = end, _lines(buffer.size * buffer.dtype.bytes)
            end = end + stride[buffer] * threads
        elif buffer.role is Role.SHARED:
            offset[buffer] = end
            end = end + _lines(_for_threads(buffer.size, threads) * buffer.dtype.bytes)
    return ScratchLayout(offset, stride, end)


def _lines(size: Dim) -> Dim:
    return quotient(size + (LINE - 1), LINE) * LINE


def _for_threads(size: Dim, threads: int) -> Dim:
    """`size` with the number of tasks put in."""
    if isinstance(size, int):
        return size
    per_task = quotient(size, THREADS)
    return per_task * threads if per_task * THREADS == size else size
