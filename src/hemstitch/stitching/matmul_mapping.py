"""What products of matrices ask of the mapping: tiles of rows by columns.

Every product adds up tiles of both operands, so the rows of a task must be rows of the left matrix,
the last row axis must be its alone, and the lanes are columns of the right one. Whatever reads the
product in the same row (an epilogue, EVT section 3; a softmax and the next product, FusionStitching
2019 section 4) then finds it in registers. Many columns are cut into blocks, unless a row is needed
whole.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod

from hemstitch.ir.dims import quotient
from hemstitch.ir.graph import Node
from hemstitch.kernel_ir.index import Axis, Index, Variable, at
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.axis_collapsing import Folding
from hemstitch.stitching.dimension_unification import Unification
from hemstitch.stitching.group import Group
from hemstitch.stitching.loop_shapes import Mapping, RootShape
from hemstitch.stitching.online_softmax import LONGEST_ROW, is_long
from hemstitch.stitching.refusal import Refused

COLUMNS = 128  # of a tile, where a row need not be whole
LEAST_COLUMNS = 32  # of one where there would be too few tiles
LEAST_TILE = 16  # rows, columns and steps of the smallest tile that matrix units take
MOST_ROWS = 128
DOT_PROGRAMS = 12  # of that many wanted, one that has large tiles is enough
LEAST_BLOCK = 4  # rows, on processors; fewer at a time are multiplied at half the speed


@dataclass(frozen=True, slots=True)
class MatmulLoops:
    """A product's loops. `rows`: of the left matrix, the innermost last; `steps`: those that it
    adds up along. At the example sizes, `count`: of rows, `size`: elements of the result, `work`:
    multiplications."""

    node: Node
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    steps: tuple[Axis, ...]
    count: int
    size: int
    work: int


def rows_of_a_tile(extents: Sequence[int], most: int, programs: int) -> int:
    """On a GPU: of the last of these axes; fewer than `most` where programs would be too few."""
    *outer, last = extents
    while most > LEAST_TILE and DOT_PROGRAMS * prod(outer) * -(-last // most) < programs:
        most //= 2
    return max(LEAST_TILE, most)


def products_of(group: Group, unification: Unification, folding: Folding) -> list[MatmulLoops]:
    """Those of a group, in its order."""
    found = []
    for node, steps in unification.contracted.items():
        domain = unification.domain[node]
        *batch, rows, columns = (folding.axes(domain.within(i)) for i in domain.indices)
        # A folded axis that is rows of the matrix and batches too may be taken for rows.
        outer = dict.fromkeys(axis for axes in batch for axis in axes if axis not in rows)
        size = prod(group.hint(axis.extent) for axis in domain.axes)
        work = size * prod(group.hint(axis.extent) for axis in steps.axes)
        count = size // max(1, prod(group.hint(axis.extent) for axis in columns))
        loops = (tuple(outer), rows, columns, folding.axes(steps.axes))
        found.append(MatmulLoops(node, *loops, count, size, work))
    return found


def product_mapping(
    products: Sequence[MatmulLoops],
    shapes: Sequence[RootShape],
    along: Container[Node],
    machine: Machine,
) -> Mapping:
    """Rows and lanes for the largest of `products` and all that is read beside it. `along`: those
    that add up along the lanes. Rows that wait in memory are whole, whatever their length."""
    inside = [product for product in products if product.node in along]
    for product in products:
        _check(product, machine)
    first = max(inside or products, key=lambda product: product.work)
    rows, (column,) = (*first.batch, *first.rows), first.steps if inside else first.columns
    axes = dict.fromkeys(axis for shape in shapes for axis in shape.axes)
    order = tuple(axis for axis in axes if axis not in rows and axis is not column)
    if machine.execution is Execution.SIMD:
        return Mapping(rows, (*order, column))
    is_summed = any(column in product.steps for product in products)
    is_one_block = isinstance(column.extent, int) and column.extent <= COLUMNS
    if is_one_block or is_summed or any(column in shape.reduced for shape in shapes):
        for product in inside:
            if is_long(product.columns[0].extent):
                why = f"{product.columns[0].extent} sums of a row, at most {LONGEST_ROW} at a time"
                raise Refused("product", why)
        if is_summed:
            _check_waiting(first, machine)
        return Mapping(rows, (*order, column), once=column if is_long(column.extent) else None)
    width = COLUMNS
    while width > LEAST_COLUMNS and first.size < width * MOST_ROWS * machine.threads // 2:
        width //= 2
    block = Axis(f"{column.name}b", quotient(column.extent + (width - 1), width))
    inner = Axis(f"{column.name}e", width, block, column.extent)
    split: dict[Variable, Index] = {column: at(block).scaled(width) + at(inner)}
    return Mapping((*first.batch, block, *first.rows), (*order, inner), split)


def _check_waiting(product: MatmulLoops, machine: Machine) -> None:
    """Rows that the next product adds up along are whole, so that only rows are dealt out. Where
    they are few, a launch of its own for the next product is over sooner."""
    units = machine.matrix_units[product.node.inputs[0].type.dtype]
    tiles = max(1, -(-product.count // LEAST_TILE))
    each = 2 * product.work / tiles / units.operations_per_second / units.share * machine.threads
    if tiles < machine.threads and each > 2 * machine.launch_seconds:
        rows = f"{product.count} rows are {tiles} tiles"
        raise Refused("product", f"{rows}, each of which would take longer than two launches")


def _check(product: MatmulLoops, machine: Machine) -> None:
    if not product.rows:
        raise Refused("product", "a single row: a vector, not a matrix")
    if len(product.columns) != 1 or len(product.steps) != 1:
        raise Refused("product", "columns, or what is added up, do not lie along one axis")
    *outer, inner = (axis.extent for axis in product.rows)
    is_short = bool(outer) and isinstance(inner, int) and inner < LEAST_BLOCK
    if is_short and machine.execution is Execution.SIMD:
        raise Refused("product", f"rows are read by several axes, the innermost of {inner}")
