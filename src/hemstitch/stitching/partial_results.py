"""The partial results of all tasks as one: by each reader for itself, or in a phase of its own that
deals them out to all tasks and leaves one copy. Takes sizes and a machine to decide, and builds."""

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

CLEARED_AND_FLUSHED = 4  # passes over a task's own sums in double, beside narrow ones of half that


def pays(reads: Iterable[tuple[int, int]], machine: Machine) -> bool:
    """Whether one more phase does. `reads`: of each reduction that would share it, its elements and
    how many nests would combine all of them in each task."""
    saved = sum(readers * _alone(size, machine) - _dealt(size, machine) for size, readers in reads)
    return saved > machine.barrier_seconds


def seconds(elements: int, tasks: int, machine: Machine, *, for_all: bool) -> float:
    """That partial results of one reduction take: each task leaves its own, and then they are
    combined `for_all` tasks in the cheaper way, or else by those that need them, a share each."""
    passes, width = (CLEARED_AND_FLUSHED, 8) if machine.accumulator_bytes == 8 else (1, 4)
    is_small = elements * width <= machine.l1_bytes  # then it is latency that counts
    copies = 1 if is_small else min(machine.partial_copies, -(-tasks // machine.threads))
    copy = elements * width / machine.cache_bytes_per_second
    left = copies * passes * copy
    if not for_all:
        return left + copies * copy
    dealt = machine.barrier_seconds + copies * _dealt(elements, machine)
    return left + min(copies * _alone(elements, machine), dealt)


def _alone(elements: int, machine: Machine) -> float:
    """Seconds of a task that reads every task's partial results."""
    return elements * machine.threads * 4 / machine.cache_bytes_per_second


def _dealt(elements: int, machine: Machine) -> float:
    """Of a task that reads its share of them, and then the copy."""
    return 2 * elements * 4 / machine.cache_bytes_per_second


def combining_nest(buffers: Buffers, node: Node, machine: Machine) -> Nest:
    """A row an element, into the memory where results for other tasks are."""
    axis = Axis(buffers.name("k"), node.type.size)
    name, statements = combine(buffers, node, at(axis))
    body = (*statements, Store(buffers.shared(node), at(axis), name))
    return Nest((axis,), (), body, (), machine.threads, "partial results, combined once")


def combine(buffers: Buffers, node: Node, address: Index) -> tuple[str, list[Stmt]]:
    """The name that holds one element, and what makes it."""
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
        lost = new("lost")
        added += [Load(lost, buffers.lost(node), place), Accumulate(accumulator, lost)]
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
