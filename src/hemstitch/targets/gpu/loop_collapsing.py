"""Loops around a loop over lanes that become lanes themselves: heads around the columns of a head,
say. A row is then one tile, which stays in registers from one walk over it to the next, and sums of
rows that each element has for itself are carried there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from hemstitch.kernel_ir.index import Axis, AxisPart, Index, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    AccumulateMatmul,
    Constant,
    Contract,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Running,
    Scan,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.tiling import is_tile, power_of_two


def collapse_loops(kernel: Kernel) -> Kernel:
    """The same kernel; in no nest of products, whose lanes are those of matrices."""
    phases = tuple(
        replace(phase, nests=tuple(map(_collapsed_nest, phase.nests))) for phase in kernel.phases
    )
    return replace(kernel, phases=phases)


def _collapsed_nest(nest: Nest) -> Nest:
    if any(isinstance(s, Contract | AccumulateMatmul) for s in walk(nest.body)):
        return nest
    return replace(nest, body=tuple(map(_collapsed, nest.body)))


def _collapsed(statement: Stmt) -> Stmt:
    if not isinstance(statement, Loop) or is_tile(statement):
        return statement
    loops = _chain(statement)
    if loops is None or not _is_collapsible(loops):
        return replace(statement, body=tuple(map(_collapsed, statement.body)))
    axes = [loop.axis for loop in loops]
    size = prod(_size(axis) for axis in axes)
    collapsed = Axis("".join(axis.name for axis in axes), size)
    rewriter = Rewriter({}, lambda index: on_collapsed_axis(index, axes, collapsed))
    body = [s for loop in loops for s in loop.body if not isinstance(s, Loop) or loop is loops[-1]]
    return Loop(collapsed, tuple(map(rewriter.statement, body)), lanes=True)


def _chain(loop: Loop) -> list[Loop] | None:
    """Loops inside each other down to one over lanes, with nothing but values between."""
    if (
        loop.between is not None
        or loop.axis.outer is not None
        or not isinstance(loop.axis.extent, int)
    ):
        return None
    if is_tile(loop):
        return [loop]
    inside = [s for s in loop.body if not isinstance(s, Load | Let | Constant | Position)]
    if len(inside) != 1 or inside[0] is not loop.body[-1] or not isinstance(inside[0], Loop):
        return None
    rest = _chain(inside[0])
    return None if rest is None else [loop, *rest]


def _is_collapsible(loops: Sequence[Loop]) -> bool:
    """Neighbours are so in memory; each lane writes a place of its own, and reads nothing that
    another one has written; there are not too many."""
    *outer, last = (_size(loop.axis) for loop in loops)
    lanes = power_of_two(prod(outer) * last)
    if not 0 < lanes <= min(GPU.whole_lanes, GPU.padding_ratio * prod(outer) * power_of_two(last)):
        return False
    everything = list(walk(loops[0].body))
    if any(isinstance(s, Running | Scan) for s in everything):
        return False
    loads = [s for s in everything if isinstance(s, Load)]
    writes = [s for s in everything if isinstance(s, Store | AccumulateInto)]
    axes, read = [loop.axis for loop in loops], {s.buffer for s in loads}
    if any(s.index.coefficient(axes[-1]) not in (0, 1) for s in (*loads, *writes)):
        return False
    return all(
        s.buffer not in read and all(s.index.coefficient(axis) != 0 for axis in axes)
        for s in writes
    )


def _size(axis: Axis) -> int:
    assert isinstance(axis.extent, int)
    return axis.extent


def on_collapsed_axis(index: Index, axes: Sequence[Axis], collapsed: Axis) -> Index:
    """Axes that are next to each other in memory, too, are one variable."""
    if all(index.coefficient(axis) == 0 for axis in axes):
        return index
    result = Index(tuple(t for t in index.terms if t[0] not in axes), index.constant)
    for part in _parts(index, axes, collapsed):
        result += part
    return result


def _parts(index: Index, axes: Sequence[Axis], collapsed: Axis) -> Iterator[Index]:
    """From the last axis outwards: what steps like one axis with those inside it is one with it."""
    step, extent, coefficient = 1, 1, index.coefficient(axes[-1])
    for axis in reversed(axes):
        if index.coefficient(axis) != coefficient * extent:
            yield _part(collapsed, step, extent).scaled(coefficient)
            step, extent, coefficient = step * extent, 1, index.coefficient(axis)
        extent *= _size(axis)
    yield _part(collapsed, step, extent).scaled(coefficient)


def _part(collapsed: Axis, step: int, extent: int) -> Index:
    return at(collapsed if extent == _size(collapsed) else AxisPart(collapsed, step, extent))
