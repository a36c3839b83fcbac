"""How each phase begins. Takes the phases' nests and a machine, gives a barrier, or a ticket where
the last task to come would rather do the rest alone than have all others told.

A barrier is two trips through memory: to arrive, and to learn that all have. A ticket is the first.
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

ARRIVAL = 0.5  # of a barrier's time: one of its two trips
WHY = {
    Begin.BARRIER: "results of other tasks are read",
    Begin.LAST_BLOCK: "results of other tasks are read, sooner by one task than behind a barrier",
    Begin.ALONE: "nobody else is left",
}


def with_begins(
    phases: Sequence[Sequence[Nest]], machine: Machine, hints: Mapping[str, int]
) -> tuple[Phase, ...]:
    """One task runs those last phases alone that save the most time together."""
    sizes = {**hints, "threads": machine.threads}
    first_alone, best = len(phases), 0.0
    saved = -ARRIVAL * machine.barrier_seconds
    for number in range(len(phases) - 1, 0, -1):
        if any(map(_has_part_of_each_task, phases[number])):
            break
        saved += machine.barrier_seconds - _longer_alone(phases[number], machine, sizes)
        if saved > best:
            first_alone, best = number, saved
    together = [Begin.BARRIER] * (first_alone - 1)
    behind = [*together, Begin.LAST_BLOCK, *[Begin.ALONE] * len(phases)]
    first, *others = (tuple(nests) for nests in phases)
    return (Phase(first), *(Phase(nests, WHY[b], b) for nests, b in zip(others, behind)))


def _has_part_of_each_task(nest: Nest) -> bool:
    """The nest leaves partial results, which a task that does not run it would not leave."""
    everything = walk((*nest.prologue, *nest.body, *nest.epilogue))
    return any(
        statement.index.coefficient(TASK) != 0
        for statement in everything
        if isinstance(statement, (Load, Store, AccumulateInto, Position, Random))
    )


def _longer_alone(nests: Iterable[Nest], machine: Machine, sizes: Mapping[str, int]) -> float:
    """Seconds of one task with all the work, less those of the busiest one if all share it."""
    alone = busiest = 0.0
    for nest in nests:
        rows = prod(evaluate(axis.extent, sizes) for axis in nest.rows)
        once, each = (_seconds(s, machine, sizes) for s in (nest.prologue, nest.body))
        alone += once + rows * each
        busiest = max(busiest, once + ceil(rows / machine.threads) * each)
    return alone - max(busiest, alone / machine.threads)


def _seconds(statements: Iterable[Stmt], machine: Machine, sizes: Mapping[str, int]) -> float:
    """Of one task: a vector at a time, out of L2, where other tasks left what is read."""
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
