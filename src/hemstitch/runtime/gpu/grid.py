"""The grid of a launch and its scratch. Takes a program, its sizes and the number of resident
programs, gives a `Grid`."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.ir.dims import evaluate
from hemstitch.targets.gpu.kernel import TritonProgram

MOST_PROGRAMS = 1 << 30  # so that program numbers and tile offsets fit 32 bits


@dataclass(frozen=True, slots=True)
class Grid:
    """`offsets`: where each scratch buffer starts, in bytes."""

    programs: int  # 0: there is nothing to do
    offsets: tuple[int, ...]
    scratch_bytes: int


def grid_of(program: TritonProgram, sizes: tuple[int, ...], resident: int | None) -> Grid:
    """A program for each tile, but at most `resident` programs, unless that is None."""
    values = {str(name): size for name, size in zip(program.sizes, sizes)}
    most = MOST_PROGRAMS if resident is None else resident
    programs = min(evaluate(program.tiles, values), most)
    values["threads"] = programs
    offsets, scratch_bytes = program.scratch_layout(values)
    return Grid(programs, tuple(offsets), scratch_bytes)
