"""Memory traffic of a kernel: the bytes of each buffer that it reads and writes.

A phase reads a buffer once, however many of its loops do: later loads hit a cache. After a barrier
the next phase reads it again. If a phase executes fewer loads than a buffer has elements (an
embedding), only those count. Row buffers stay on chip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from hemstitch.ir.dims import Dim, evaluate
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    AccumulateInto,
    Buffer,
    Kernel,
    Load,
    Phase,
    Role,
    Stmt,
    Store,
)

Bytes = dict[Buffer, int]


def traffic(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Bytes, Bytes]:
    """Bytes (read, written) of each buffer. `sizes`: of symbols; "threads" is the number of
    tasks."""
    read: Counter[Buffer] = Counter()
    written: Counter[Buffer] = Counter()
    for phase in kernel.phases:
        loads, stores = phase_traffic(phase, sizes)
        read.update(loads)
        written.update(stores)
    return dict(read), dict(written)


def phase_traffic(
    phase: Phase, sizes: Mapping[str, int]
) -> tuple[Counter[Buffer], Counter[Buffer]]:
    """Bytes (read, written) of each buffer in one phase."""
    return _touched(phase, _loaded, sizes), _touched(phase, _stored, sizes)


def reread_bytes(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """The bytes that `traffic` counts as read in a second or later phase."""
    total: Counter[Buffer] = Counter()
    largest: Counter[Buffer] = Counter()
    for phase in kernel.phases:
        loads, _ = phase_traffic(phase, sizes)
        total.update(loads)
        largest |= loads
    return (total - largest).total()


def _touched(
    phase: Phase, buffers_of: Callable[[Stmt], Iterator[Buffer]], sizes: Mapping[str, int]
) -> Counter[Buffer]:
    """Bytes of each buffer that a phase accesses."""
    elements: Counter[Buffer] = Counter()
    for statement, times in executed(phase, sizes):
        for buffer in buffers_of(statement):
            elements[buffer] += times
    return Counter(
        {
            buffer: min(times, evaluate(buffer.size, sizes)) * buffer.dtype.bytes
            for buffer, times in elements.items()
        }
    )


def executed(phase: Phase, sizes: Mapping[str, int]) -> Iterator[tuple[Stmt, int]]:
    """Each statement of a phase, with the number of its executions."""
    for nest in phase.nests:
        rows = _count((axis.extent for axis in nest.rows), sizes)
        yield from _executed(nest.body, rows, sizes)
        tasks = 1 if phase.is_alone else sizes["threads"]
        yield from _executed((*nest.prologue, *nest.epilogue), tasks, sizes)


def _executed(
    statements: Iterable[Stmt], times: int, sizes: Mapping[str, int]
) -> Iterator[tuple[Stmt, int]]:
    for statement in statements:
        if isinstance(statement, BLOCKS):
            yield from _executed(
                statement.body, times * evaluate(statement.axis.extent, sizes), sizes
            )
        else:
            yield statement, times


def _count(extents: Iterable[Dim], sizes: Mapping[str, int]) -> int:
    result = 1
    for extent in extents:
        result *= evaluate(extent, sizes)
    return result


def _loaded(statement: Stmt) -> Iterator[Buffer]:
    if isinstance(statement, Load | AccumulateInto):
        yield from _in_memory(statement)


def _stored(statement: Stmt) -> Iterator[Buffer]:
    if isinstance(statement, Store | AccumulateInto):
        yield from _in_memory(statement)


def _in_memory(statement: Load | Store | AccumulateInto) -> Iterator[Buffer]:
    for buffer in (statement.buffer, getattr(statement, "positions", None)):
        if buffer is not None and buffer.role is not Role.TASK:
            yield buffer
