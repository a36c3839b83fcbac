"""Mapping of kernels with matmuls: tiles of rows by columns.

The rows of a task are rows of the left operand, the last row axis belongs to it alone, and the
lanes are columns of the right operand. An epilogue (EVT section 3), or a softmax and a chained
matmul (FusionStitching 2019, section 4), then finds the result in registers. The columns are split
into blocks, unless whole rows are needed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod

from hemstitch.ir.dims import quotient
from hemstitch.ir.graph import Node
from hemstitch.kernel_ir.index import Axis, Index, Variable, at
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.axis_collapsing import CollapsedAxes
from hemstitch.stitching.dimension_unification import Unification
from hemstitch.stitching.group import Group
from hemstitch.stitching.loop_shapes import Mapping, RootShape
from hemstitch.stitching.online_softmax import is_long
from hemstitch.stitching.refusal import Refused


@dataclass(frozen=True, slots=True)
class MatmulLoops:
    """The loops of one matmul. `rows`: M axes, the innermost last. `columns`: N. `steps`: K. At the
    example sizes, `count`: rows; `size`: elements of the result; `work`: multiplications."""

    node: Node
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    steps: tuple[Axis, ...]
    count: int
    size: int
    work: int


def rows_of_a_tile(extents: Sequence[int], most: int, programs: int) -> int:
    """Rows of a tile on a GPU: at most `most`, fewer where there would be too few programs.
    `extents`: of the row axes."""
    *outer, last = extents
    while (
        most > GPU.least_dot_extent and GPU.dot_programs * prod(outer) * -(-last // most) < programs
    ):
        most //= 2
    return max(GPU.least_dot_extent, most)


def matmuls_of(
    group: Group, unification: Unification, collapsed: CollapsedAxes
) -> list[MatmulLoops]:
    """The matmuls of a group, in its order."""
    matmuls = []
    for node, steps in unification.contracted.items():
        domain = unification.domain[node]
        *batch, rows, columns = (collapsed.axes(domain.within(i)) for i in domain.indices)
        # A folded axis that is rows of the matrix and batches too may be taken for rows.
        outer = dict.fromkeys(axis for axes in batch for axis in axes if axis not in rows)
        size = prod(group.hint(axis.extent) for axis in domain.axes)
        work = size * prod(group.hint(axis.extent) for axis in steps.axes)
        count = size // max(1, prod(group.hint(axis.extent) for axis in columns))
        loops = (tuple(outer), rows, columns, collapsed.axes(steps.axes))
        matmuls.append(MatmulLoops(node, *loops, count, size, work))
    return matmuls


def map_matmuls(
    matmuls: Sequence[MatmulLoops],
    shapes: Sequence[RootShape],
    along_lanes: Container[Node],
    machine: Machine,
) -> Mapping:
    """A mapping for the largest of `matmuls` and everything that is computed with it.
    `along_lanes`: matmuls whose K is the lane axis. On CPUs rows stay in memory, whole, whatever
    their length."""
    lane_matmuls = [matmul for matmul in matmuls if matmul.node in along_lanes]
    for matmul in matmuls:
        _check_shape(matmul, machine)
    largest = max(lane_matmuls or matmuls, key=lambda matmul: matmul.work)
    rows, (column,) = (
        (*largest.batch, *largest.rows),
        largest.steps if lane_matmuls else largest.columns,
    )
    axes = dict.fromkeys(axis for shape in shapes for axis in shape.axes)
    order = tuple(axis for axis in axes if axis not in rows and axis is not column)
    if machine.execution is Execution.SIMD:
        return Mapping(rows, (*order, column))
    is_contracted = any(column in matmul.steps for matmul in matmuls)
    is_one_block = isinstance(column.extent, int) and column.extent <= GPU.dot_columns
    if is_one_block or is_contracted or any(column in shape.reduced for shape in shapes):
        for matmul in lane_matmuls:
            if is_long(matmul.columns[0].extent):
                columns = f"{matmul.columns[0].extent} columns"
                why = f"{columns}, at most {GPU.register_columns} stay in registers"
                raise Refused("matmul", why)
        if is_contracted:
            _check_chained(largest, machine)
        return Mapping(
            rows, (*order, column), single_pass=column if is_long(column.extent) else None
        )
    width = GPU.dot_columns
    while (
        width > GPU.least_dot_columns and largest.size < width * GPU.dot_rows * machine.threads // 2
    ):
        width //= 2
    block = Axis(f"{column.name}b", quotient(column.extent + (width - 1), width))
    inner = Axis(f"{column.name}e", width, block, column.extent)
    split: dict[Variable, Index] = {column: at(block).scaled(width) + at(inner)}
    return Mapping((*largest.batch, block, *largest.rows), (*order, inner), split)


def _check_chained(matmul: MatmulLoops, machine: Machine) -> None:
    """A chained matmul contracts whole rows, so that only rows are distributed. Where they are few,
    a launch of its own for the chained matmul is faster."""
    units = machine.matrix_units[matmul.node.inputs[0].type.dtype]
    tiles = max(1, -(-matmul.count // GPU.least_dot_extent))
    tile_seconds = (
        2 * matmul.work / tiles / units.operations_per_second / units.share * machine.threads
    )
    if tiles < machine.threads and tile_seconds > 2 * machine.launch_seconds:
        rows = f"{matmul.count} rows are {tiles} tiles"
        raise Refused("matmul", f"{rows}, each of which would take longer than two launches")


def _check_shape(matmul: MatmulLoops, machine: Machine) -> None:
    if not matmul.rows:
        raise Refused("matmul", "a single row: a GEMV")
    if len(matmul.columns) != 1 or len(matmul.steps) != 1:
        raise Refused("matmul", "N or K is not a single axis")
    *outer, inner = (axis.extent for axis in matmul.rows)
    is_short = bool(outer) and isinstance(inner, int) and inner < CPU.block_rows
    if is_short and machine.execution is Execution.SIMD:
        raise Refused("matmul", f"M is several axes, the innermost of {inner}")
