"""Where a kernel's scratch lies: shared by the code and its caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hemstitch.ir.dims import Dim, quotient
from hemstitch.kernel_ir.lifetime import Life, in_place, phase_lifetimes, task_lifetimes
from hemstitch.kernel_ir.nodes import THREADS, Buffer, Kernel, Role
from hemstitch.kernel_ir.placement import Lifetime, place
from hemstitch.machine.cpu_numbers import CPU


@dataclass(frozen=True, slots=True)
class ScratchLayout:
    """`offset` in bytes of each scratch buffer; TASK buffers have a copy every `stride` bytes."""

    offset: Mapping[Buffer, Dim]
    stride: Dim
    total: Dim


def scratch_layout(kernel: Kernel, threads: int) -> ScratchLayout:
    """Room for at most `threads` tasks, whose own memory comes first. Buffers that never live
    together share memory."""
    own, stride = _task_layout(kernel)
    shared = {b: life for b, life in phase_lifetimes(kernel).items() if b.role is Role.SHARED}
    bytes_ = {b: _whole_lines(_for_threads(b.size, threads) * b.dtype.bytes) for b in shared}
    places, end = _placed(bytes_, shared)
    start = stride * threads
    return ScratchLayout(own | {b: start + p for b, p in places.items()}, stride, start + end)


def _task_layout(kernel: Kernel) -> tuple[dict[Buffer, Dim], Dim]:
    """The offsets of task buffers in the memory of one task, and how much that is. What is made in
    place lies where it was made from."""
    lives = task_lifetimes(kernel)
    reused = in_place(kernel, lives)
    origin: dict[Buffer, Buffer] = {}  # the first to lie there
    merged_lives: dict[
        Buffer, Life
    ] = {}  # from its first moment to the last of those that follow it
    for buffer in sorted(lives, key=lambda buffer: lives[buffer]):
        owner = origin[buffer] = origin[reused[buffer]] if buffer in reused else buffer
        merged_lives[owner] = (lives[owner][0], lives[buffer][1])
    bytes_ = {b: _whole_lines(_whole_vectors(b.size) * b.dtype.bytes) for b in merged_lives}
    places, end = _placed(bytes_, merged_lives)
    return {buffer: places[owner] for buffer, owner in origin.items()}, end


def _placed(
    bytes_: Mapping[Buffer, Dim], lives: Mapping[Buffer, Life]
) -> tuple[dict[Buffer, Dim], Dim]:
    """Offsets, and the bytes in all. A size that only a call knows is a unit of its own: equal ones
    share memory."""
    units = {b: CPU.line_bytes if isinstance(size, int) else size for b, size in bytes_.items()}
    offsets: dict[Buffer, Dim] = {}
    end: Dim = 0
    for unit in dict.fromkeys(units.values()):
        buffers = [buffer for buffer in bytes_ if units[buffer] == unit]
        sizes = ((bytes_[buffer], lives[buffer]) for buffer in buffers)
        lifetimes = [
            Lifetime(n // CPU.line_bytes if isinstance(n, int) else 1, *life) for n, life in sizes
        ]
        places, count = place(lifetimes, line=1)
        offsets |= {buffer: end + unit * number for buffer, number in zip(buffers, places)}
        end = end + unit * count
    return offsets, end


def _whole_lines(size: Dim) -> Dim:
    return quotient(size + (CPU.line_bytes - 1), CPU.line_bytes) * CPU.line_bytes


def _whole_vectors(size: Dim) -> Dim:
    return quotient(size + (CPU.widest_lanes - 1), CPU.widest_lanes) * CPU.widest_lanes


def _for_threads(size: Dim, threads: int) -> Dim:
    """`size` with the number of tasks put in."""
    if isinstance(size, int):
        return size
    per_task = quotient(size, THREADS)
    return per_task * threads if per_task * THREADS == size else size
