"""Lifetimes of scratch buffers: those of a task in outermost statements, shared ones in phases.

Buffers whose lifetimes are disjoint may share memory. Lifetimes follow from liveness in execution
order. The papers' dominance test rejects their own example (see
docs/design/stitching-and-mapping.md).
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
    """(first, last) of each task buffer, in positions among the kernel's outermost statements. A
    nest's body repeats for each row. So a buffer that another part of the nest accesses is live in
    the whole nest."""
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
    """(first, last) phase of each scratch buffer. Within a phase tasks are at any statement. No
    task begins a phase before all have finished the one before, be it by a barrier or as the last
    block."""
    lives: dict[Buffer, Life] = {}
    for number, phase in enumerate(kernel.phases):
        for nest in phase.nests:
            for buffer in _scratch([statement for part in nest.parts for statement in part]):
                _extend(lives, buffer, number, number)
    return lives


def in_place(kernel: Kernel, lives: Mapping[Buffer, Life]) -> dict[Buffer, Buffer]:
    """Task buffers that can reuse the memory of another, each with that other one: the last loop
    that loads the old buffer stores the new one, element by element. `lives`: of
    `task_lifetimes`."""
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
    """Every iteration loads its own element of `old`, and only then stores that of `new`. This
    holds for any vector width, as a statement finishes in all lanes before the next one begins."""
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
    """No two iterations access one element."""
    step = index.coefficient(axis)
    is_affine = all(isinstance(variable, Axis) for variable, _ in index.terms)
    return is_affine and isinstance(step, int) and step != 0


def _nests(kernel: Kernel) -> Iterator[tuple[int, Nest]]:
    """Each nest with its first position. It takes one position before and one after its body, for
    its other parts."""
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
