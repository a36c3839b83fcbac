"""Loads that begin with the row, though what they load is needed later.

Each wait for memory takes as long as hundreds of instructions. The compiler moves a load up past
arithmetic, but not past a branch (division and roots have one, for what is rare) nor past a place
where threads meet, as they do to reduce. So what a row needs behind such places is asked for
together with what it needs first.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.index import Variable
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Finish,
    Let,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.tiling import Tiling, is_tile

BRANCHING = {
    *(Op.DIV, Op.RECIPROCAL, Op.SQRT, Op.RSQRT, Op.POW, Op.FMOD, Op.REMAINDER, Op.FLOORDIV),
    *(Op.SIN, Op.COS, Op.TAN, Op.SINH, Op.COSH, Op.ATAN2, Op.TRUNCDIV, Op.EXPM1, Op.LOG1P),
}


def hoistable_loads(
    nest: Nest, tiling: Tiling, pinned: Container[Buffer]
) -> list[tuple[Loop | None, Load]]:
    """Loads of a row in the order of the program, and the loops that have them as tiles; none where
    they all come first anyhow. `pinned`: buffers whose loads stay where they are."""
    if tiling.k_tiles:
        return []
    hoisted: list[tuple[Loop | None, Load]] = []
    visited: set[Hashable] = set()
    written: set[Buffer] = set()
    registers_left, is_behind_barrier, is_gain = float(GPU.hoisted_registers), False, False
    for loop, statement in _in_order(nest, tiling):
        if isinstance(statement, Store | AccumulateInto):
            written.add(statement.buffer)
            is_behind_barrier |= statement.buffer in pinned  # threads meet before
        elif isinstance(statement, Load):
            place = _place(statement, nest, tiling, loop)
            if place is None or place in visited:
                continue
            visited.add(place)
            if statement.buffer in written or statement.buffer in pinned:
                continue
            registers_left -= _registers(statement, nest, tiling, loop)
            if registers_left >= 0:
                hoisted.append((loop, statement))
                is_gain |= is_behind_barrier
        is_behind_barrier |= isinstance(statement, Finish)
        is_behind_barrier |= isinstance(statement, Let) and statement.op in BRANCHING
    return hoisted if is_gain else []


def _in_order(nest: Nest, tiling: Tiling) -> Iterator[tuple[Loop | None, Stmt]]:
    """Every statement of a row, with the loop that is its tile; no load of other loops, which may
    never run."""
    for statement in nest.body:
        if not isinstance(statement, Loop):
            yield None, statement
        elif is_tile(statement) and tiling.lanes[statement.axis].whole:
            yield from ((statement, inside) for inside in walk(statement.body))
        else:
            yield from ((None, s) for s in walk(statement.body) if not isinstance(s, Load))


def _place(load: Load, nest: Nest, tiling: Tiling, loop: Loop | None) -> Hashable:
    """Where it loads from, equal for all loops over as many lanes; None if that is near, or not
    known as soon as a row begins."""
    lanes: dict[Variable, int] = {}
    if loop is not None:
        lanes[loop.axis] = tiling.lanes[loop.axis].size
    variables = {variable for variable, _ in load.index.terms}
    is_own = load.buffer.role is Role.TASK  # what the row itself has written
    is_near = variables.isdisjoint(nest.rows)  # what all rows read is in a cache
    if is_own or is_near or load.mask is not None or variables - {*nest.rows, *lanes}:
        return None
    terms = ((lanes.get(variable, variable), step) for variable, step in load.index.terms)
    return load.buffer, frozenset(terms), load.index.constant


def _registers(load: Load, nest: Nest, tiling: Tiling, loop: Loop | None) -> float:
    """Of each thread, for the tile."""
    variables = {variable for variable, _ in load.index.terms}
    rows = tiling.rows if variables & {*nest.rows} else 1
    lanes = tiling.lanes[loop.axis].size if loop is not None and loop.axis in variables else 1
    return max(1.0, rows * lanes / (GPU.warp_threads * tiling.warps))
