"""Lanes that no tile has the size for: of 4096, say, 3072 exist, and a quarter of all arithmetic is
for nothing. Where nothing is combined along them, they are cut into parts that fill tiles, which
are rows then (and nests of their own, see loop_fission.py).
"""

from __future__ import annotations

from dataclasses import replace

from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Stmt,
    Store,
)
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.loop_fission import MOST_NESTS
from hemstitch.targets.gpu.tiling import power_of_two

_OF_ROWS = (Load, Let, Constant, Position)
_OF_LANES = (*_OF_ROWS, Random, Store, AccumulateInto)


def peel_tiles(kernel: Kernel) -> Kernel:
    """The same kernel."""
    phases = (
        phase if phase.is_alone else replace(phase, nests=tuple(map(_peeled, phase.nests)))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


def _peeled(nest: Nest) -> Nest:
    """Sums over rows alone: what has none of them walks over all elements as one row anyhow."""
    if not nest.body:
        return nest
    *before, loop = nest.body
    if not isinstance(loop, Loop) or not loop.lanes or loop.axis.outer is not None:
        return nest
    sums = [s for s in loop.body if isinstance(s, AccumulateInto)]
    add_up_all_rows = all(s.index.coefficient(row) == 0 for s in sums for row in nest.rows)
    is_plain = all(isinstance(s, _OF_ROWS) for s in before)
    is_plain = is_plain and all(isinstance(s, _OF_LANES) for s in loop.body)
    size = _part_size(loop.axis)
    if size is None or not sums or not is_plain or not add_up_all_rows:
        return nest
    assert isinstance(loop.axis.extent, int)
    part = Axis(f"{loop.axis.name}p", loop.axis.extent // size)
    lane = Axis(f"{loop.axis.name}q", size)

    def cut(index: Index) -> Index:
        return index.substitute({loop.axis: at(part).scaled(size) + at(lane)})

    body: tuple[Stmt, ...] = tuple(map(Rewriter({}, cut).statement, loop.body))
    why = f"{nest.why} x {part.name}[{part.extent}]"
    rows = (*nest.rows, part)
    return replace(nest, rows=rows, body=(*before, replace(loop, axis=lane, body=body)), why=why)


def _part_size(axis: Axis) -> int | None:
    """Lanes of a part; None where the axis is better left whole."""
    extent = axis.extent
    if not isinstance(extent, int) or not 0 < extent <= GPU.whole_lanes:
        return None
    size = extent & -extent  # the largest power of two that divides it
    is_wasteful = extent < (1 - GPU.empty_share) * power_of_two(extent)
    return (
        size if is_wasteful and size >= GPU.peeled_lanes and extent // size <= MOST_NESTS else None
    )
