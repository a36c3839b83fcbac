"""Which accumulators in memory a program can carry in registers over all its rows.

A sum over rows is one addition to memory for each row. Where every row adds to the same tile of
lanes, the tile is a variable instead, and goes to memory after the last row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hemstitch.ir.dims import Dim
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import (
    TASK,
    AccumulateInto,
    Buffer,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.targets.gpu.tiling import Tiling, is_tile


@dataclass(frozen=True, slots=True)
class RegisterAccumulator:
    """An accumulator in registers: what adds to it, over which lanes (None: a single element)."""

    statement: AccumulateInto
    axis: Axis | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the variables: two for ARGMAX and ARGMIN."""
        return tuple(f"carried_{buffer.name}" for buffer in self.buffers)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        positions = self.statement.positions
        return (self.statement.buffer,) + (() if positions is None else (positions,))


def register_accumulators(nest: Nest, tiling: Tiling) -> Mapping[Buffer, RegisterAccumulator]:
    """By each of their buffers."""
    accumulators: dict[Buffer, RegisterAccumulator] = {}
    for statement, axis in additions(nest.body):
        accumulator = RegisterAccumulator(statement, axis)
        if _fits_registers(accumulator, nest, tiling):
            accumulators |= dict.fromkeys(accumulator.buffers, accumulator)
    return accumulators


def _fits_registers(accumulator: RegisterAccumulator, nest: Nest, tiling: Tiling) -> bool:
    statement, axis = accumulator.statement, accumulator.axis
    variables = {variable for variable, _ in statement.index.terms} - {TASK}
    if variables - {axis} or statement.buffer.role is not Role.SHARED:
        return False
    if axis is not None and variables and not tiling.lanes[axis].whole:
        return False
    inside = [s for s in walk(nest.body) if isinstance(s, (Load, Store, AccumulateInto))]
    if any(s is not statement and s.buffer in accumulator.buffers for s in inside):
        return False
    size: Dim = axis.extent if variables and axis is not None else 1
    fills = list(_fills(nest.prologue, statement.buffer, None))
    return len(fills) == 1 and (fills[0] == size)


def additions(
    statements: Iterable[Stmt], tile: Axis | None = None
) -> Iterator[tuple[AccumulateInto, Axis | None]]:
    """With the lanes of the tile that each is in."""
    for statement in statements:
        if isinstance(statement, AccumulateInto):
            yield statement, tile
        elif isinstance(statement, Loop):
            opens = tile is None and is_tile(statement)
            yield from additions(statement.body, statement.axis if opens else tile)


def _fills(statements: Iterable[Stmt], buffer: Buffer, size: Dim | None) -> Iterator[Dim]:
    """How much of a buffer each store to it covers."""
    for statement in statements:
        if isinstance(statement, Store) and statement.buffer is buffer:
            yield 1 if size is None else size
        elif isinstance(statement, Loop):
            yield from _fills(statement.body, buffer, statement.axis.extent)
