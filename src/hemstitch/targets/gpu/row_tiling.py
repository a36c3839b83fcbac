"""Rows that add to one place, several of them at a time: of the images of a batch, say, what the
statistics of one channel are made of. One row walks over all of them with its sums in registers, so
that lanes are combined, and memory is added to, once for all instead of once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hemstitch.ir.dims import Dim, product
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateInto,
    Constant,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Stmt,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, used
from hemstitch.machine.gpu_numbers import GPU


def tile_rows(kernel: Kernel, hint: Callable[[Dim], int], programs: int) -> Kernel:
    """The same kernel; `programs`: one for each multiprocessor."""

    def nest_of(nest: Nest) -> Nest:
        count = hint(product(axis.extent for axis in nest.rows)) if nest.rows else 0
        most = min(GPU.combined_rows, count // (GPU.multiprocessor_rows * programs))
        candidates = (_combined_rows(nest, axis, most) for axis in nest.rows[:-1])
        return next((candidate for candidate in candidates if candidate is not None), nest)

    phases = (
        phase if phase.is_alone else replace(phase, nests=tuple(map(nest_of, phase.nests)))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


def _combined_rows(nest: Nest, axis: Axis, most: int) -> Nest | None:
    """The nest with up to so many of its rows along `axis` as one; None where it is not only sums,
    or they do not come out even."""
    size = _largest_divisor(axis.extent, most)
    if size < GPU.least_combined_rows or not _only_adds(nest.body, axis):
        return None
    assert isinstance(axis.extent, int)
    block, inner = Axis(f"{axis.name}g", axis.extent // size), Axis(f"{axis.name}m", size)
    split_index = at(block).scaled(size) + at(inner)

    def split(index: Index) -> Index:
        return index.substitute({axis: split_index})

    loops = [s for s in nest.body if isinstance(s, Loop)]
    walked = Loop(inner, tuple(map(Rewriter({}, split).statement, loops)), lanes=False)
    before = [s for s in nest.body if isinstance(s, Init) or _is_value(s)]
    after = [s for s in nest.body if isinstance(s, Finish | AccumulateInto)]
    rows = (*(row for row in nest.rows if row is not axis), block)
    why = f"{nest.why}, of {axis.name} {size} as one"
    return replace(nest, rows=rows, body=(*before, walked, *after), why=why)


def _largest_divisor(extent: Dim, most: int) -> int:
    if not isinstance(extent, int):
        return 1
    return max((size for size in range(1, most + 1) if extent % size == 0), default=1)


def _only_adds(body: Sequence[Stmt], axis: Axis) -> bool:
    """Every row along `axis` adds to the same places what its loops over lanes add up, and computes
    nothing else that it does not share with the others."""
    loops = [s for s in body if isinstance(s, Loop)]
    sums = [s for s in body if isinstance(s, AccumulateInto)]
    finished = {name for s in body if isinstance(s, Finish) for name in _names(s)}
    return (
        bool(loops and sums)
        and all(isinstance(s, Init | Loop | Finish | AccumulateInto) or _is_value(s) for s in body)
        and all(s.lanes and _only_accumulates(s) for s in loops)
        and not any(axis in _axes(s) for s in body if not isinstance(s, Loop))
        and all(s.positions is None and s.value in finished for s in sums)
        and all(s.running_max is None and s.columns is None for s in body if isinstance(s, Init))
        and finished.isdisjoint(
            name for s in (*loops, *filter(_is_value, body)) for name in used(s)
        )
    )


def _is_value(statement: Stmt) -> bool:
    return isinstance(statement, Load | Let | Constant | Position)


def _only_accumulates(loop: Loop) -> bool:
    """Sums, and nothing that tells which lane, or which row, was the greatest."""
    return all(
        _is_value(s) or (isinstance(s, Accumulate) and s.position is None and s.order is None)
        for s in loop.body
    )


def _names(finish: Finish) -> Iterator[str]:
    yield finish.name
    if finish.position_name is not None:
        yield finish.position_name


def _axes(statement: Stmt) -> set[object]:
    indices = (
        s.index for s in walk([statement]) if isinstance(s, Load | AccumulateInto | Position)
    )
    return {variable for index in indices for variable, _ in index.terms}
