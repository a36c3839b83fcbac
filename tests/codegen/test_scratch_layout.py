"""Scratch: buffers that live together never overlap, those that do not may share."""

from __future__ import annotations

from itertools import combinations

from hemstitch.codegen.llvm.layout import scratch_layout
from hemstitch.ir.types import DType
from hemstitch.kernel.index import Axis, at
from hemstitch.kernel.lifetime import task_lifetimes
from hemstitch.kernel.nodes import (
    Buffer,
    Constant,
    Kernel,
    Load,
    Loop,
    Nest,
    Phase,
    Role,
    Stmt,
    Store,
)


def filled(buffer: Buffer, lane: Axis) -> Loop:
    name = f"zero_{buffer.name}"
    body = (Constant(name, 0, DType.F32), Store(buffer, at(lane), name))
    return Loop(lane, body, lanes=True)


def read(buffer: Buffer, lane: Axis) -> Loop:
    return Loop(lane, (Load(f"value_{buffer.name}", buffer, at(lane)),), lanes=True)


def kernel_of(prologue: tuple[Stmt, ...], body: tuple[Stmt, ...], buffers: list[Buffer]) -> Kernel:
    nest = Nest((Axis("row", 8),), prologue, body, (), 64, "rows")
    return Kernel("k", tuple(buffers), (Phase((nest,)),))


def test_buffers_of_successive_loops_share_memory() -> None:
    lane = Axis("lane", 64)
    a, b, c = (Buffer(name, DType.F32, Role.TASK, 64) for name in "abc")
    body = (filled(a, lane), filled(b, lane), read(a, lane), filled(c, lane), read(c, lane))
    kernel = kernel_of((), (*body, read(b, lane)), [a, b, c])
    layout = scratch_layout(kernel, threads=2)
    assert layout.offset[a] == layout.offset[c] != layout.offset[b]
    assert layout.total == 2 * 2 * 256


def test_overlapping_lives_never_share() -> None:
    lane = Axis("lane", 100)
    buffers = [Buffer(f"b{k}", DType.F32, Role.TASK, 50 + k) for k in range(6)]
    statements = [filled(buffers[k % 6], lane) for k in range(9)]
    kernel = kernel_of((), tuple(statements), buffers)
    lives = task_lifetimes(kernel)
    layout = scratch_layout(kernel, threads=3)
    for one, other in combinations(buffers, 2):
        if lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]:
            assert layout.offset[one] != layout.offset[other]


def test_what_the_prologue_fills_lives_through_all_rows() -> None:
    lane = Axis("lane", 64)
    a, b = (Buffer(name, DType.F32, Role.TASK, 64) for name in "ab")
    kernel = kernel_of((filled(a, lane),), (read(a, lane), filled(b, lane)), [a, b])
    layout = scratch_layout(kernel, threads=1)
    assert layout.offset[a] != layout.offset[b]
