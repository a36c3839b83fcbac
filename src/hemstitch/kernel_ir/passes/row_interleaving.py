"""Unroll-and-jam of short rows: several rows run interleaved. A horizontal reduction has the
latency of several vectors. Out-of-order execution does not look far enough ahead to hide it, except
in rows with one reduction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateInto,
    Buffer,
    Check,
    Constant,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined
from hemstitch.machine.cpu_numbers import CPU

_PLAIN = (Let, Constant, Position, Random, Load, Store, Check, Init, Accumulate, AccumulateInto)


def interleave_rows(kernel: Kernel, lanes: int) -> Kernel:
    """The kernel with short rows interleaved, for vectors of `lanes` lanes. Each interleaved row
    has row buffers of its own."""
    buffers: list[Buffer] = [*kernel.buffers]
    phases = []
    for phase in kernel.phases:
        nests = []
        for nest in phase.nests:
            interleaved = _interleaved(nest, lanes, buffers)
            nests.append(nest if interleaved is None else interleaved)
        phases.append(replace(phase, nests=tuple(nests)))
    return replace(kernel, buffers=tuple(buffers), phases=tuple(phases))


def _interleaved(nest: Nest, lanes: int, buffers: list[Buffer]) -> Nest | None:
    """The nest with interleaved rows, or None if rows are long, have few reductions, or their
    number is not divisible. `buffers`: of the kernel; receives the new row buffers."""
    count = _interleave_factor(nest, lanes)
    if count < 2:
        return None
    *outer, last = nest.rows
    assert isinstance(last.extent, int), "looked at before"
    group = Axis(f"{last.name}g", last.extent // count)
    own, prepared = (_written(part) for part in (nest.body, nest.prologue))
    if own.keys() & prepared.keys():  # a buffer that rows and prologue share
        return None
    rows = []
    for number in range(count):
        row_index = at(group).scaled(count).shifted(number)
        private = {b: replace(b, name=f"{b.name}_{number}") for b in own} if number else {}
        buffers.extend(private.values())
        rows.append(_stages(_row(nest.body, last, row_index, number, private)))
    body = [statement for stage in zip(*rows) for row in stage for statement in row]
    why = f"{nest.why}, {count} abreast"
    return replace(
        nest, rows=(*outer, group), body=tuple(body), weight=nest.weight * count, why=why
    )


def _written(body: Iterable[Stmt]) -> dict[Buffer, None]:
    """The task buffers that statements store to, in program order."""
    stores = (s for s in walk(body) if isinstance(s, Store))
    return {s.buffer: None for s in stores if s.buffer.role is Role.TASK}


def _interleave_factor(nest: Nest, lanes: int) -> int:
    """The number of rows to interleave; 1 for none."""
    loops = [s for s in nest.body if isinstance(s, Loop)]
    plain = [s for s in nest.body if not isinstance(s, Loop | Finish)]
    inside = [s for loop in loops for s in loop.body]
    if (
        not nest.rows
        or not isinstance(nest.rows[-1].extent, int)
        or nest.epilogue
        or nest.panels
        or not all(isinstance(s, _PLAIN) for s in (*plain, *inside))
        or not all(map(_is_simple, loops))
        or len(_stages(nest.body)) < CPU.interleaved_stages
    ):
        return 1
    extents = [loop.axis.extent for loop in loops if loop.axis.limit is None]
    known = [extent for extent in extents if isinstance(extent, int) and extent > 0]
    if len(known) < len(loops):
        return 1
    count = CPU.interleaved_rows
    while count > 1 and (
        count * max(known) > CPU.interleaved_vectors * lanes or nest.rows[-1].extent % count
    ):
        count //= 2
    return count


def _is_simple(loop: Loop) -> bool:
    """A lane loop with contiguous or uniform accesses."""
    places = (s.index for s in loop.body if isinstance(s, Load | Store | AccumulateInto))
    is_near = all(place.coefficient(loop.axis) in (0, 1) for place in places)
    return loop.lanes and loop.between is None and is_near


def _row(
    body: Sequence[Stmt], axis: Axis, row_index: Index, number: int, private: dict[Buffer, Buffer]
) -> Iterator[Stmt]:
    """The statements of the row at `row_index`. Names change in all rows but the first."""
    names: dict[str, str] = {}
    if number:
        defined_names = [name for s in walk(body) for name in defined(s)]
        defined_names += [s.name for s in walk(body) if isinstance(s, Init)]
        names = {name: f"{name}_{number}" for name in defined_names}
    rewriter = Rewriter(
        names,
        lambda index: index.substitute({axis: row_index}),
        lambda buffer, index: (private.get(buffer, buffer), index),
    )
    return map(rewriter.statement, body)


def _stages(body: Iterable[Stmt]) -> list[list[Stmt]]:
    """The statements in groups; each ends with horizontal reductions."""
    stages: list[list[Stmt]] = [[]]
    across = set[str]()
    for statement in body:
        last = stages[-1][-1] if stages[-1] else None
        waits = isinstance(last, Finish) and last.accumulator in across
        if waits and not isinstance(statement, Finish):
            stages.append([])
        stages[-1].append(statement)
        if isinstance(statement, Init) and statement.across:
            across.add(statement.name)
    return stages
