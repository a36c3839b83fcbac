"""Scratch: buffers that live together never overlap, those that do not may share. What is made in
place is right in machine code."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
import torch

from hemstitch.ir.dims import evaluate, symbol
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.interpreter import run
from hemstitch.kernel_ir.lifetime import in_place, phase_lifetimes, task_lifetimes
from hemstitch.kernel_ir.nodes import (
    THREADS,
    Begin,
    Buffer,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Role,
    Stmt,
    Store,
)
from hemstitch.kernel_ir.verifier import verify
from hemstitch.targets.cpu.scratch_layout import scratch_layout
from hemstitch.toolchain.jit import host_target, load
from hemstitch.toolchain.llvm_objects import compiled
from tests.lowered import llvm


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


def test_what_tasks_share_lives_for_whole_phases() -> None:
    """b is made where a is read: another task may not have read it yet. c comes a phase later; the
    last phases are those of one task."""
    lane, n = Axis("lane", 64), symbol("n")
    a, b, c = (Buffer(name, DType.F32, Role.SHARED, 64 * THREADS) for name in "abc")
    d, e, f = (Buffer(name, DType.F32, Role.SHARED, n) for name in "def")
    parts = [
        (filled(a, lane), filled(d, lane)),
        (read(a, lane), read(d, lane), filled(b, lane), filled(e, lane)),
        (read(b, lane), read(e, lane), filled(c, lane), filled(f, lane)),
        (read(c, lane), read(f, lane)),
    ]
    begins = (Begin.BARRIER, Begin.BARRIER, Begin.LAST_BLOCK, Begin.ALONE)
    nests = [Nest((), part, (), (), 64, "once") for part in parts]
    phases = tuple(Phase((nest,), "", begin) for nest, begin in zip(nests, begins))
    kernel = Kernel("k", (a, b, c, d, e, f), phases)
    assert [phase_lifetimes(kernel)[x] for x in (a, b, c)] == [(0, 1), (1, 2), (2, 3)]
    layout = scratch_layout(kernel, threads=5)
    assert layout.offset[a] == layout.offset[c] != layout.offset[b]
    assert layout.offset[d] == layout.offset[f] != layout.offset[e]
    assert evaluate(layout.total, {"n": 10}) == 2 * 5 * 256 + 2 * 64


LANE = Axis("lane", 100)


def made(new: Buffer, old: Buffer, index: Index, before: tuple[Stmt, ...] = ()) -> Loop:
    """new[lane] = old[index]."""
    name = f"{new.name}_of_{old.name}"
    return Loop(LANE, (*before, Load(name, old, index), Store(new, at(LANE), name)), lanes=True)


def test_what_is_made_element_by_element_takes_the_place() -> None:
    a, b, c = (Buffer(name, DType.F32, Role.TASK, 100) for name in "abc")
    body = (filled(a, LANE), made(b, a, at(LANE)), made(c, b, at(LANE)), read(c, LANE))
    kernel = kernel_of((), body, [a, b, c])
    assert in_place(kernel, task_lifetimes(kernel)) == {b: a, c: b}
    assert scratch_layout(kernel, threads=1).total == 448


ZERO = Constant("zero", 0, DType.F32)
A, B = (Buffer(name, DType.F32, Role.TASK, 100) for name in "ab")
WIDE = Buffer("wide", DType.F64, Role.TASK, 100)
HERE, BACK, ONE = at(LANE), at(LANE).scaled(-1).shifted(99), Index((), 7)
NOT_IN_PLACE = {
    "at another index": made(B, A, BACK),
    "read again elsewhere": made(B, A, HERE, (Load("other", A, ONE),)),
    "read afterwards": Loop(
        LANE, (ZERO, Store(B, HERE, "zero"), Load("late", A, HERE)), lanes=True
    ),
    "wider": Loop(
        LANE,
        (Load("v", A, HERE), Constant("w", 0, DType.F64), Store(WIDE, HERE, "w")),
        lanes=True,
    ),
    "in a loop inside": Loop(Axis("twice", 2), (made(B, A, HERE),), lanes=False),
    "at one place": Loop(Axis("k", 3), (Load("v", A, ONE), Store(B, ONE, "v")), lanes=False),
}


@pytest.mark.parametrize("step", NOT_IN_PLACE.values(), ids=NOT_IN_PLACE)
def test_what_cannot_be_in_place(step: Loop) -> None:
    kernel = kernel_of((), (filled(A, LANE), step, read(B, LANE)), [A, B, WIDE])
    assert not in_place(kernel, task_lifetimes(kernel))


def random_row(random: Random, x: Buffer, y: Buffer) -> tuple[list[Stmt], list[Buffer]]:
    """Loops that make buffers of earlier ones, read forwards, backwards or at one place, some of
    them after a store."""
    buffers: list[Buffer] = []
    body: list[Stmt] = []
    for step in range(8):
        old = random.choices([x, *buffers[-3:]], k=random.randint(1, 3))
        new = [
            Buffer(f"b{step}{k}", DType.F32, Role.TASK, 100) for k in range(random.choice([1, 2]))
        ]
        stored = [(buffer, random.randint(1, len(old))) for buffer in new]
        inside: list[Stmt] = [Constant(f"s{step}0", step, DType.F32)]
        for k, source in enumerate(old, 1):
            index = HERE if source is x else random.choice([HERE, HERE, HERE, BACK, ONE])
            operands = (f"s{step}{k - 1}", f"v{step}{k}")
            inside += [
                Load(operands[1], source, index),
                Let(f"s{step}{k}", Op.ADD, operands, DType.F32, DType.F32),
                *(Store(buffer, HERE, f"s{step}{k}") for buffer, after in stored if after == k),
            ]
        body.append(Loop(LANE, tuple(inside), lanes=True))
        buffers += new
    inside = [Load("last", buffers[-1], HERE), Store(y, HERE, "last")]
    return [*body, Loop(LANE, tuple(inside), lanes=True)], buffers


def test_random_rows_in_machine_code() -> None:
    shared = 0
    x, y = (Buffer(n, DType.F32, role, 100) for n, role in (("x", Role.INPUT), ("y", Role.OUTPUT)))
    for seed in range(30):
        body, buffers = random_row(Random(seed), x, y)
        nest = Nest((), (), tuple(body), (), 100, "one row")
        kernel = Kernel(f"row{seed}", (x, y, *buffers), (Phase((nest,)),))
        verify(kernel)
        shared += len(in_place(kernel, task_lifetimes(kernel)))
        program = llvm(kernel, host_target())
        source, result, expected = torch.randn(100), torch.zeros(100), np.zeros(100, np.float32)
        scratch = torch.full((evaluate(program.scratch_bytes, {}) + 64,), 0xFF, dtype=torch.uint8)
        start = scratch.data_ptr() + -scratch.data_ptr() % 64
        load(compiled(program.text), program.entry)(source, result, start)
        run(kernel, [source.numpy(), expected], {}, check=True)
        np.testing.assert_array_equal(result.numpy(), expected)
    assert shared > 30
