"""How long each task buffer holds something: from the first statement that touches it to the last.

Plain liveness on the order of execution decides what may share memory (the papers' dominance test
refuses their own example; docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hemstitch.kernel.nodes import AccumulateInto, Buffer, Kernel, Load, Role, Stmt, Store, walk

Life = tuple[int, int]  # first and last position among the kernel's outermost statements


def task_lifetimes(kernel: Kernel) -> dict[Buffer, Life]:
    """Rows repeat a nest's body, so what any other part of it touches lives all through it."""
    lives: dict[Buffer, Life] = {}
    position = 0
    for phase in kernel.phases:
        for nest in phase.nests:
            start, end = position, position + len(nest.body) + 1
            for offset, statement in enumerate(nest.body, start=1):
                for buffer in _task_buffers([statement]):
                    _extend(lives, buffer, start + offset, start + offset)
            for buffer in _task_buffers([*nest.prologue, *nest.panels, *nest.epilogue]):
                _extend(lives, buffer, start, end)
            position = end + 1
    return lives


def _extend(lives: dict[Buffer, Life], buffer: Buffer, first: int, last: int) -> None:
    known = lives.get(buffer, (first, last))
    lives[buffer] = (min(known[0], first), max(known[1], last))


def _task_buffers(statements: Iterable[Stmt]) -> Iterator[Buffer]:
    for statement in walk(statements):
        if isinstance(statement, Load | Store | AccumulateInto):
            for buffer in (statement.buffer, getattr(statement, "positions", None)):
                if buffer is not None and buffer.role is Role.TASK:
                    yield buffer
