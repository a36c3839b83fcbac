"""Combines the partial results of all tasks: each reader for itself, or a phase of its own that
distributes the elements over tasks and leaves one copy. Decides which, and builds the
statements."""

from __future__ import annotations

from collections.abc import Iterable

from hemstitch.ir.graph import Node, Op
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    THREADS,
    Accumulate,
    Finish,
    Init,
    Let,
    Load,
    Loop,
    Nest,
    Stmt,
    Store,
)
from hemstitch.machine.record import Machine
from hemstitch.stitching.buffers import Buffers, partial_step

# A count of the algorithm, which clears the f64 sums and adds them to the f32 sums.
CLEARED_AND_FLUSHED = 4  # passes over a task's f64 sums, in addition to its f32 sums


def is_combining_profitable(reads: Iterable[tuple[int, int]], machine: Machine) -> bool:
    """Whether a phase that combines partial results is profitable. `reads`: for each reduction
    that would use it, its elements and the number of nests that would combine all of them in
    each task."""
    saved = sum(
        readers * _combine_all_seconds(size, machine) - _combine_share_seconds(size, machine)
        for size, readers in reads
    )
    return saved > machine.barrier_seconds


def seconds(elements: int, tasks: int, machine: Machine, *, for_all: bool) -> float:
    """The cost of the partial results of one reduction. Each task stores its own; then they are
    combined `for_all` tasks in the cheaper way, or else by their readers, a share each."""
    passes, width = (CLEARED_AND_FLUSHED, 8) if machine.accumulator_bytes == 8 else (1, 4)
    is_small = elements * width <= machine.l1_bytes  # then latency dominates
    copies = 1 if is_small else min(machine.partial_copies, -(-tasks // machine.threads))
    copy = elements * width / machine.cache_bytes_per_second
    stored = copies * passes * copy
    if not for_all:
        return stored + copies * copy
    distributed = machine.barrier_seconds + copies * _combine_share_seconds(elements, machine)
    return stored + min(copies * _combine_all_seconds(elements, machine), distributed)


def _combine_all_seconds(elements: int, machine: Machine) -> float:
    """Seconds of a task that reads every task's partial results."""
    return elements * machine.threads * 4 / machine.cache_bytes_per_second


def _combine_share_seconds(elements: int, machine: Machine) -> float:
    """Seconds of a task that combines its share, and then reads the results."""
    return 2 * elements * 4 / machine.cache_bytes_per_second


def combining_nest(buffers: Buffers, node: Node, machine: Machine) -> Nest:
    """One row per element; the results go to shared memory."""
    axis = Axis(buffers.name("k"), node.type.size)
    name, statements = combine(buffers, node, at(axis))
    body = (*statements, Store(buffers.shared(node), at(axis), name))
    return Nest((axis,), (), body, (), machine.threads, "partial results, combined once")


def combine(buffers: Buffers, node: Node, address: Index) -> tuple[str, list[Stmt]]:
    """Statements that combine one element, and the name of the result."""
    new = buffers.name
    buffer, positions = buffers.partial(node)
    part = Axis(new("t"), THREADS)
    place = address + at(part).scaled(partial_step(node))
    accumulator, value, name = new("acc"), new("part"), new("r")
    loads: list[Stmt] = [Load(value, buffer, place)]
    order = position = None
    if positions is not None:
        order, position = new("at"), new("at")
        loads.append(Load(order, positions, place))
    added: list[Stmt] = [Accumulate(accumulator, value, order=order)]
    is_compensated = buffers.is_compensated(node)
    if is_compensated:
        compensation = new("lost")
        added += [
            Load(compensation, buffers.compensation(node), place),
            Accumulate(accumulator, compensation),
        ]
    dtype, result = buffer.dtype, node.type.dtype.compute
    statements: list[Stmt] = [
        Init(accumulator, node.op, dtype, across=False, compensated=is_compensated),
        Loop(part, (*loads, *added), lanes=False),
        Finish(name, accumulator, position),
    ]
    if position is None and dtype is not result:
        narrow = new("r")
        statements.append(Let(narrow, Op.CAST, (name,), dtype, result))
        name = narrow
    return (position or name), statements
