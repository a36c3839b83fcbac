"""How each phase begins: behind a grid-wide barrier, or as a last-block reduction, where the last
task to arrive does the rest alone because that is faster.

A barrier costs two trips through memory: one to arrive, one to learn that all have arrived. A
last-block reduction (`Begin.TICKET`) costs the first only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, prod

from hemstitch.ir.dims import evaluate
from hemstitch.kernel_ir.nodes import (
    TASK,
    AccumulateInto,
    Begin,
    Contract,
    Load,
    Loop,
    Nest,
    Phase,
    Position,
    Random,
    Stmt,
    Store,
    walk,
)
from hemstitch.machine.record import Machine

REASONS = {
    Begin.BARRIER: "results of other tasks are read",
    Begin.LAST_BLOCK: "results of other tasks are read, sooner by one task than behind a barrier",
    Begin.ALONE: "nobody else is left",
}


def with_begins(
    phases: Sequence[Sequence[Nest]], machine: Machine, hints: Mapping[str, int]
) -> tuple[Phase, ...]:
    """The phases of these nests. One task runs those last phases alone whose serial execution saves
    the most time."""
    sizes = {**hints, "threads": machine.threads}
    first_alone, best = len(phases), 0.0
    saved = -machine.arrival_share * machine.barrier_seconds
    for number in range(len(phases) - 1, 0, -1):
        if any(map(_has_part_of_each_task, phases[number])):
            break
        saved += machine.barrier_seconds - _serial_excess(phases[number], machine, sizes)
        if saved > best:
            first_alone, best = number, saved
    parallel = [Begin.BARRIER] * (first_alone - 1)
    begins = [*parallel, Begin.LAST_BLOCK, *[Begin.ALONE] * len(phases)]
    first, *later = (tuple(nests) for nests in phases)
    return (Phase(first), *(Phase(nests, REASONS[b], b) for nests, b in zip(later, begins)))


def _has_part_of_each_task(nest: Nest) -> bool:
    """Whether the nest stores a partial result per task, for which every task has to run it."""
    everything = walk((*nest.prologue, *nest.body, *nest.epilogue))
    return any(
        statement.index.coefficient(TASK) != 0
        for statement in everything
        if isinstance(statement, (Load, Store, AccumulateInto, Position, Random))
    )


def _serial_excess(nests: Iterable[Nest], machine: Machine, sizes: Mapping[str, int]) -> float:
    """Seconds that one task takes longer for all the work than the busiest of all tasks for its
    share."""
    serial = busiest = 0.0
    for nest in nests:
        rows = prod(evaluate(axis.extent, sizes) for axis in nest.rows)
        prologue, row = (_seconds(s, machine, sizes) for s in (nest.prologue, nest.body))
        serial += prologue + rows * row
        busiest = max(busiest, prologue + ceil(rows / machine.threads) * row)
    return serial - max(busiest, serial / machine.threads)


def _seconds(statements: Iterable[Stmt], machine: Machine, sizes: Mapping[str, int]) -> float:
    """Seconds of one task: a vector at a time, from L2, where other tasks stored their results."""
    total = 0.0
    for statement in statements:
        if isinstance(statement, (Loop, Contract)):
            extent = evaluate(statement.axis.extent, sizes)
            is_wide = isinstance(statement, Loop) and statement.lanes
            steps = ceil(extent / machine.lanes) if is_wide else extent
            total += steps * _seconds(statement.body, machine, sizes)
        elif isinstance(statement, (Load, Store, AccumulateInto)):
            accesses = 2 if isinstance(statement, AccumulateInto) else 1
            moved = accesses * machine.lanes * statement.buffer.dtype.bytes
            total += moved / machine.cache_bytes_per_second
        else:
            total += 1 / machine.operations_per_second
    return total
