"""Nests that combine what programs have left, dealt out anew: each waits for memory as often as
there are terms, so all programs should have some of the elements, a sector of memory at least,
neighbours in memory together, and all sums of an element should be under way at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from hemstitch.kernel_ir.index import Axis, AxisPart, Index, at
from hemstitch.kernel_ir.nodes import (
    THREADS,
    Accumulate,
    Constant,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Stmt,
    Store,
)
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.loop_collapsing import on_collapsed_axis
from hemstitch.targets.gpu.tiling import power_of_two


def distribute_work(kernel: Kernel, programs: int) -> Kernel:
    """The same kernel; `programs`: one for each multiprocessor."""
    phases = (
        phase
        if phase.is_alone
        else replace(
            phase, nests=tuple(_distributed(nest, programs) or nest for nest in phase.nests)
        )
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


def _distributed(nest: Nest, programs: int) -> Nest | None:
    """None where it is not only such sums, or its elements are not neighbours in memory."""
    if len(nest.body) != 1 or nest.epilogue:
        return None
    (loop,) = nest.body
    if not isinstance(loop, Loop) or not loop.lanes or not _only_combines(loop.body):
        return None
    axes, statements = _merged_lanes(nest.rows, loop)
    axes = _from_outermost(axes, statements)
    sizes = [axis.extent for axis in axes if isinstance(axis.extent, int) and axis.limit is None]
    count = prod(sizes)
    if len(sizes) < len(axes) or count == 0:
        return None
    size = max(GPU.sector_elements, power_of_two(-(-count // programs)))
    whole, block = Axis(f"{loop.axis.name}w", count), Axis(f"{loop.axis.name}d", -(-count // size))
    inner = Axis(f"{loop.axis.name}n", size, block, count)
    split_index = at(block).scaled(size) + at(inner)
    parts: list[AxisPart] = []

    def placed(index: Index) -> Index:
        on_whole = on_collapsed_axis(index, axes, whole)
        parts.extend(v for v, _ in on_whole.terms if isinstance(v, AxisPart))
        return on_whole.substitute({whole: split_index})

    body = tuple(map(Rewriter({}, placed).statement, _fused_sums(statements)))
    if parts:
        return None
    why = f"{nest.why}, {size} elements each"
    return replace(nest, rows=(block,), body=(replace(loop, axis=inner, body=body),), why=why)


def _only_combines(body: Sequence[Stmt]) -> bool:
    """Sums over programs, and what each element becomes then."""
    loops, rest = _sums(body), [s for s in body if not isinstance(s, Loop)]
    stored = {s.buffer for s in rest if isinstance(s, Store)}
    return (
        bool(loops)
        and all(loop.axis.extent == THREADS for loop in loops)
        and all(isinstance(s, Load | Accumulate) for loop in loops for s in loop.body)
        and all(load.buffer not in stored for loop in loops for load in _loads(loop))
        and all(isinstance(s, Init | Finish | Store | Load | Let | Constant) for s in rest)
        and all(s.running_max is None and s.columns is None for s in rest if isinstance(s, Init))
    )


def _sums(body: Sequence[Stmt]) -> list[Loop]:
    return [s for s in body if isinstance(s, Loop)]


def _loads(loop: Loop) -> Iterator[Load]:
    return (s for s in loop.body if isinstance(s, Load))


def _from_outermost(axes: Iterable[Axis], body: Sequence[Stmt]) -> list[Axis]:
    """As what is read of a program has them in memory."""
    place = next(_loads(_sums(body)[0])).index

    def stride(axis: Axis) -> int:
        step = place.coefficient(axis)
        return step if isinstance(step, int) else 0

    return sorted(axes, key=stride, reverse=True)


def _merged_lanes(rows: Sequence[Axis], loop: Loop) -> tuple[Sequence[Axis], Sequence[Stmt]]:
    """With lanes that are one axis again, where they were cut in blocks."""
    lanes, block = loop.axis, loop.axis.outer
    if block is None or block not in rows or lanes.limit is None:
        return (*rows, lanes), loop.body
    axis = Axis(lanes.name, lanes.limit)
    whole = Rewriter({}, lambda index: index.substitute({block: Index(), lanes: at(axis)}))
    other_rows = (row for row in rows if row is not block)
    return (*other_rows, axis), tuple(map(whole.statement, loop.body))


def _fused_sums(body: Sequence[Stmt]) -> list[Stmt]:
    """All sums in one loop."""
    first, *rest = _sums(body)
    fused = list(first.body)
    for loop in rest:
        fused += map(_renamed(loop.axis, first.axis).statement, loop.body)
    inits = [s for s in body if isinstance(s, Init)]
    after = [s for s in body if not isinstance(s, Init | Loop)]
    return [*inits, replace(first, body=tuple(fused)), *after]


def _renamed(axis: Axis, target: Axis) -> Rewriter:
    return Rewriter({}, lambda index: index.substitute({axis: at(target)}))
