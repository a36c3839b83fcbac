"""How long scratch holds something: a task's own buffers from the first statement that touches them
to the last, what tasks share for whole phases.

Plain liveness on the order of execution decides what may share memory (the papers' dominance test
refuses their own example; docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import (
    Buffer,
    Kernel,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    buffers_of,
    walk,
)

Life = tuple[int, int]  # first and last position, or phase


def task_lifetimes(kernel: Kernel) -> dict[Buffer, Life]:
    """Positions among the kernel's outermost statements. Rows repeat a nest's body, so what any
    other part of it touches lives all through it."""
    lives: dict[Buffer, Life] = {}
    for start, nest in _nests(kernel):
        end = start + len(nest.body) + 1
        for position, statement in enumerate(nest.body, start + 1):
            for buffer in _scratch([statement]):
                _extend(lives, buffer, position, position)
        for buffer in _scratch([*nest.prologue, *nest.panels, *nest.epilogue]):
            _extend(lives, buffer, start, end)
    return {buffer: life for buffer, life in lives.items() if buffer.role is Role.TASK}


def phase_lifetimes(kernel: Kernel) -> dict[Buffer, Life]:
    """Phases, of all scratch. Within one, tasks are anywhere; but none begins the next before all
    are done with it, be it behind a barrier or as the last one to take a ticket."""
    lives: dict[Buffer, Life] = {}
    for number, phase in enumerate(kernel.phases):
        for nest in phase.nests:
            for buffer in _scratch([statement for part in nest.parts for statement in part]):
                _extend(lives, buffer, number, number)
    return lives


def in_place(kernel: Kernel, lives: Mapping[Buffer, Life]) -> dict[Buffer, Buffer]:
    """Task buffers that can take the memory of another, and whose: the last loop that reads the old
    one makes the new one, element by element. `lives`: `task_lifetimes`."""
    reused: dict[Buffer, Buffer] = {}
    for start, nest in _nests(kernel):
        for position, loop in enumerate(nest.body, start + 1):
            if not isinstance(loop, Loop):
                continue
            read = [buffer for buffer, (_, last) in lives.items() if last == position]
            for new in [buffer for buffer, (first, _) in lives.items() if first == position]:
                free = (b for b in read if b is not new and b not in reused.values())
                old = next((b for b in free if _is_replaced(loop, b, new)), None)
                if old is not None:
                    reused[new] = old
    return reused


def _is_replaced(loop: Loop, old: Buffer, new: Buffer) -> bool:
    """Every iteration loads its own element of `old`, and then stores the same one of `new`. So it
    is with any number of lanes, if what a statement does in all of them precedes the next one."""
    inside = [s for s in walk(loop.body) if not {old, new}.isdisjoint(buffers_of(s))]
    direct = [s for s in loop.body if isinstance(s, Load | Store) and s in inside]
    loads = sum(isinstance(s, Load) and s.buffer is old for s in direct)
    return (
        (old.size, old.dtype.bytes) == (new.size, new.dtype.bytes)
        and len(direct) == len(inside)
        and all(s.buffer is new for s in direct[loads:])
        and all(s.index == direct[0].index for s in direct)
        and _is_injective(direct[0].index, loop.axis)
    )


def _is_injective(index: Index, axis: Axis) -> bool:
    """No two iterations are at one element."""
    step = index.coefficient(axis)
    is_affine = all(isinstance(variable, Axis) for variable, _ in index.terms)
    return is_affine and isinstance(step, int) and step != 0


def _nests(kernel: Kernel) -> Iterator[tuple[int, Nest]]:
    """Each nest with its first position; one before its body and one behind are of its other
    parts."""
    position = 0
    for phase in kernel.phases:
        for nest in phase.nests:
            yield position, nest
            position += len(nest.body) + 2


def _extend(lives: dict[Buffer, Life], buffer: Buffer, first: int, last: int) -> None:
    known = lives.get(buffer, (first, last))
    lives[buffer] = (min(known[0], first), max(known[1], last))


def _scratch(statements: Iterable[Stmt]) -> Iterator[Buffer]:
    for statement in walk(statements):
        yield from (b for b in buffers_of(statement) if b.role in (Role.TASK, Role.SHARED))
