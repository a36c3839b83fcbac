"""Rows that add to different places along one short axis: the gradients of queries, keys and values
that lie behind one another, say. A nest for each index of that axis adds to one place only, so that
its sums stay in registers; and of what is concatenated along the axis it reads one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Contract,
    Kernel,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.targets.gpu.register_accumulators import additions

MOST_NESTS = 4  # each is a function of its own, and each program leaves sums for each


def fission_loops(kernel: Kernel) -> Kernel:
    """The same kernel, but for the order in which programs come to its rows."""
    phases = (
        phase if phase.is_alone else replace(phase, nests=tuple(_nests(phase.nests)))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


def _nests(nests: tuple[Nest, ...]) -> Iterator[Nest]:
    for nest in nests:
        split = next(
            (nests_along for axis in nest.rows if (nests_along := _split_along(nest, axis))), None
        )
        yield from [nest] if split is None else split


def _split_along(nest: Nest, axis: Axis) -> list[Nest] | None:
    """None where there is nothing to gain, or sums are not filled as a whole."""
    extent = axis.extent
    if len(nest.rows) == 1 or not isinstance(extent, int) or not 1 < extent <= MOST_NESTS:
        return None
    other_rows = [row for row in nest.rows if row is not axis]
    sums = dict(additions(nest.body))
    for statement, lanes in sums.items():
        depends = [row for row in nest.rows if statement.index.coefficient(row) != 0]
        is_whole = lanes is not None and lanes.outer is None
        if depends != [axis] or not is_whole or statement.buffer.role is not Role.SHARED:
            return None
    has_product = any(isinstance(s, Contract) for s in walk(nest.body))
    filled = {statement.buffer for statement in sums}
    fills = {s.buffer for loop in _fills(nest, filled) for s in loop.body if isinstance(s, Store)}
    if not sums or has_product or len(filled) < len(sums) or fills != filled:
        return None
    return [_nest_at(nest, axis, number, other_rows, sums) for number in range(extent)]


def _nest_at(
    nest: Nest,
    axis: Axis,
    number: int,
    other_rows: list[Axis],
    sums: dict[AccumulateInto, Axis | None],
) -> Nest:
    """Those rows whose index along `axis` is this one."""
    rewriter = Rewriter({}, lambda index: index.substitute({axis: Index((), number)}))
    fills = _fills(nest, {statement.buffer for statement in sums})
    prologue: list[Stmt] = [s for s in nest.prologue if s not in fills]
    for statement, lanes in sums.items():
        assert lanes is not None, "looked at before"
        (loop,) = (f for f in fills for s in f.body if _stores_to(s, statement.buffer))
        inner = Axis(f"{loop.axis.name}_{number}", lanes.extent)
        place = statement.index.substitute({axis: Index((), number), lanes: at(inner)})
        body = (replace(s, index=place) if isinstance(s, Store) else s for s in loop.body)
        prologue.append(replace(loop, axis=inner, body=tuple(body)))
    return replace(
        nest,
        rows=tuple(other_rows),
        prologue=tuple(prologue),
        body=tuple(map(rewriter.statement, nest.body)),
        why=f"{nest.why}, {axis.name} = {number}",
    )


def _fills(nest: Nest, buffers: set[Buffer]) -> list[Loop]:
    """Loops before the first row that do nothing but fill one of these buffers."""
    loops = (s for s in nest.prologue if isinstance(s, Loop) and s.lanes)
    return [
        loop
        for loop in loops
        if len(stores := [s for s in loop.body if isinstance(s, Store)]) == 1
        and stores[0].buffer in buffers
    ]


def _stores_to(statement: Stmt, buffer: Buffer) -> bool:
    return isinstance(statement, Store) and statement.buffer is buffer
