"""How large the tiles of a nest are: so many rows by so many lanes in one program's hands.

A lane axis whose whole extent fits a tile stays in registers between the loops over it; a longer or
unknown one is looped over. Several short rows share a tile (AStitch's horizontal packing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.dims import Dim, divides
from hemstitch.ir.dims import product as product_of
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import max_live_values
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Contract,
    Let,
    Load,
    Loop,
    Nest,
    Stmt,
    walk,
)
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.stitching.matmul_mapping import rows_of_a_tile

HALF = 2  # bytes of the data types that matrix units multiply


@dataclass(frozen=True, slots=True)
class LaneTile:
    """A lane axis: the lanes of one tile, and whether these are all of it."""

    size: int
    whole: bool


@dataclass(frozen=True, slots=True)
class TileShape:
    """What tiles should be like: elements of one, and of one in the hands of a warp."""

    elements: int = GPU.tile_elements
    per_warp: int = GPU.warp_elements


USUAL = TileShape()
CANDIDATES = (  # the usual one first; what differs from it by a factor of two
    USUAL,
    TileShape(GPU.tile_elements, GPU.warp_elements // 2),
    TileShape(GPU.tile_elements, GPU.warp_elements * 2),
    TileShape(GPU.tile_elements * 2, GPU.warp_elements),
    TileShape(GPU.tile_elements // 2, GPU.warp_elements // 2),
)


@dataclass(frozen=True, slots=True)
class Tiling:
    """`rows`: of one tile. `lanes`: of every loop that is printed as a tile. `k_tiles`: of the
    K axis of every matmul; where there are any, a tile's rows differ in the last row axis only."""

    rows: int
    lanes: Mapping[Axis, LaneTile]
    per_warp: int = GPU.warp_elements
    k_tiles: Mapping[Axis, LaneTile] = field(default_factory=dict)
    elements: int = 0  # of all tiles, likely; unknown where there are matmuls

    @property
    def is_aligned(self) -> bool:
        """No tile has rows that differ in another axis than the last."""
        return bool(self.k_tiles)

    @property
    def warps(self) -> int:
        """Of 32 threads, so that the largest tile gives each thread enough to do."""
        widest = max((lanes.size for lanes in self.lanes.values()), default=1)
        least, most = (GPU.warp_group, GPU.dot_warps) if self.k_tiles else (1, GPU.program_warps)
        return min(most, max(least, power_of_two(self.rows * widest) // self.per_warp))


def power_of_two(size: int) -> int:
    """The least that is no smaller."""
    return 1 << max(0, size - 1).bit_length()


def choose(
    nest: Nest, hint: Callable[[Dim], int], programs: int, shape: TileShape = USUAL
) -> Tiling:
    """`hint`: a likely value of a size; `programs`: how many there should be at least."""
    lanes = {loop.axis: _lanes(loop.axis.extent) for loop in tile_loops(nest)}
    matmuls = [s for s in walk(nest.body) if isinstance(s, Contract | AccumulateMatmul)]
    if matmuls:
        return _choose_matmul_tiles(nest, matmuls, lanes, hint, programs, shape)
    lanes = _in_blocks(nest, lanes, shape)
    least = _least_rows(nest)
    if least > 1:
        lanes = {
            axis: _limited(shape.elements // least, lane_tile) for axis, lane_tile in lanes.items()
        }
    widest = max((lane_tile.size for lane_tile in lanes.values()), default=1)
    rows = 1
    count = hint(product_of(axis.extent for axis in nest.rows)) if nest.rows else 1
    per_warp = _per_warp(nest, shape)
    if nest.rows and not _is_bounded_by_its_row(nest) and not _adds_to_other_rows(nest):
        enough = max(power_of_two(count // programs + 1) // 2, least)
        elements = shape.elements * per_warp // shape.per_warp  # as many warps, with less each
        rows = max(1, min(GPU.tile_rows, max(elements, least * widest) // widest, enough))
    return Tiling(rows, lanes, per_warp, elements=count * widest)


def distribute_warps(tilings: Sequence[Tiling], programs: int) -> list[Tiling]:
    """Of all nests of a kernel. Where the largest is small, each warp has less, so that there are
    as many as the device holds: all nests run with the warps of the one that has most."""
    if any(tiling.k_tiles for tiling in tilings):
        return [*tilings]
    per_warp = max(tiling.per_warp for tiling in tilings)
    most = max(tiling.elements for tiling in tilings) // (programs * GPU.multiprocessor_warps)
    while per_warp > GPU.least_warp_elements and per_warp > most:
        per_warp //= 2
    return [replace(tiling, per_warp=min(per_warp, tiling.per_warp)) for tiling in tilings]


def _per_warp(nest: Nest, shape: TileShape) -> int:
    """Fewer elements for each warp where their values would not fit its registers."""
    per_warp = shape.per_warp
    while (
        _max_live_values(nest) * per_warp > GPU.value_registers * GPU.warp_threads
        and per_warp > GPU.warp_threads
    ):
        per_warp //= 2
    return per_warp


def _max_live_values(nest: Nest) -> int:
    return max((max_live_values(loop.body) for loop in tile_loops(nest)), default=0)


def _in_blocks(
    nest: Nest, lanes: Mapping[Axis, LaneTile], shape: TileShape
) -> dict[Axis, LaneTile]:
    """Of rows that one loop alone walks over, so many lanes at a time that their values fit the
    registers of few warps: the more warps, the fewer are left for each."""
    loops = Counter(loop.axis for loop in tile_loops(nest))
    most = GPU.warp_group * _per_warp(nest, shape)
    is_crowded = _per_warp(nest, shape) < shape.per_warp
    return {
        axis: LaneTile(most, False)
        if is_crowded and loops[axis] == 1 and lane_tile.size > most
        else lane_tile
        for axis, lane_tile in lanes.items()
    }


def _least_rows(nest: Nest) -> int:
    """Where neighbours in memory are in other rows, a tile has those that come with the first."""
    for loop in tile_loops(nest) if nest.rows else ():
        last = nest.rows[-1]
        loads = (s.index for s in walk(loop.body) if isinstance(s, Load))
        if any(i.coefficient(last) == 1 and i.coefficient(loop.axis) not in (0, 1) for i in loads):
            return GPU.sector_elements
    return 1


def _limited(size: int, lanes: LaneTile) -> LaneTile:
    return lanes if lanes.whole else replace(lanes, size=min(size, lanes.size))


def _choose_matmul_tiles(
    nest: Nest,
    matmuls: Sequence[Contract | AccumulateMatmul],
    lanes: Mapping[Axis, LaneTile],
    hint: Callable[[Dim], int],
    programs: int,
    shape: TileShape,
) -> Tiling:
    """As many rows as registers hold beside the widest tile, but tiles for all programs."""
    has_matrix_units = all(matmul.source.bytes == HALF for matmul in matmuls)
    block = LaneTile(GPU.dot_block_lanes if has_matrix_units else GPU.scalar_dot_block_lanes, False)
    lanes = {
        axis: replace(lane_tile, size=max(GPU.least_dot_extent, lane_tile.size))
        for axis, lane_tile in lanes.items()
    }
    long = [loop.axis for loop in tile_loops(nest) if _has_matmul(loop)]
    long = [
        axis for axis in long if not lanes[axis].whole or lanes[axis].size > GPU.register_columns
    ]
    lanes |= dict.fromkeys(long, block)  # long rows go by in blocks
    # What is done once, before the first row, is no tile of rows.
    widest = max(lanes[loop.axis].size for loop in _tile_loops(nest.body))
    extents = [hint(axis.extent) for axis in nest.rows]
    most_elements = (
        (GPU.accumulated_elements if has_matrix_units else GPU.accumulated_f32_elements)
        * shape.elements
        // GPU.tile_elements
    )
    # Of long rows what is not added up is a block, and soon gone.
    live_tiles = 1 if long and has_matrix_units else power_of_two(len(matmuls))
    rows = min(GPU.dot_rows, most_elements // live_tiles // widest, power_of_two(extents[-1]))
    rows = rows_of_a_tile(extents, rows, programs)
    k_tiles: dict[Axis, LaneTile] = {}
    for loop in tile_loops(nest):
        inside = list(walk(loop.body))
        if any(isinstance(s, AccumulateMatmul) for s in inside):
            k_tiles[loop.axis] = lanes[loop.axis]
        for matmul in inside:
            if isinstance(matmul, Contract):
                is_repeated = not lanes[loop.axis].whole
                k_tiles[matmul.axis] = lanes.get(matmul.axis) or _k_tile(
                    matmul, widest, is_repeated
                )
    per_warp = GPU.dot_warp_elements * shape.per_warp // GPU.warp_elements
    if long and not has_matrix_units:
        per_warp //= 2
    return Tiling(rows, lanes, per_warp, k_tiles)


def _has_matmul(loop: Loop) -> bool:
    return any(isinstance(s, Contract | AccumulateMatmul) for s in walk(loop.body))


def _k_tile(contract: Contract, widest: int, is_repeated: bool) -> LaneTile:
    """The whole sum at once, if it is short, else in blocks, several of which are loaded ahead.
    `is_repeated`: for each of several blocks of lanes, so that the left operand had better stay."""
    extent, most = contract.axis.extent, max_k_tile(contract.source)
    if isinstance(extent, int) and extent <= (GPU.register_columns if is_repeated else most):
        return LaneTile(max(GPU.least_dot_extent, power_of_two(extent)), True)
    block = min(GPU.dot_step_bytes, GPU.dot_block_bytes // widest) // contract.source.bytes
    return LaneTile(max(GPU.least_dot_extent, min(most, block)), False)


def max_k_tile(source: DType, is_repeated: bool = False) -> int:
    """How many steps of a sum go in one instruction of Triton's. There are no matrix units for f32:
    Triton takes all operands of its steps into registers at once. `is_repeated`: with a left
    operand that is in registers already, cut or not."""
    if source.bytes != HALF:
        return GPU.scalar_dot_steps
    return GPU.repeated_dot_steps if is_repeated else GPU.dot_steps


def _lanes(extent: Dim) -> LaneTile:
    """A loop that never runs remains one: what it would load may be nowhere."""
    if isinstance(extent, int) and extent <= GPU.whole_lanes:
        return LaneTile(power_of_two(extent), extent > 0)
    return LaneTile(GPU.looped_lanes, False)


def tile_loops(nest: Nest) -> Iterator[Loop]:
    """Loops that are printed as tiles: those over lanes, and serial ones that only reduce."""
    for part in (nest.prologue, nest.body, nest.epilogue):
        yield from _tile_loops(part)


def _tile_loops(statements: Iterable[Stmt]) -> Iterator[Loop]:
    for statement in statements:
        if isinstance(statement, Loop):
            if is_tile(statement):
                yield statement
            else:
                yield from _tile_loops(statement.body)


def is_tile(loop: Loop) -> bool:
    """Whether a loop outside all tiles is one."""
    return loop.lanes or only_reduces(loop)


def only_reduces(loop: Loop) -> bool:
    return all(isinstance(s, (Load, Let, Accumulate)) for s in loop.body)


def _is_bounded_by_its_row(nest: Nest) -> bool:
    """The last block of an axis that was cut may be shorter than the others."""
    loops = (s for s in walk(nest.body) if isinstance(s, Loop) and s.axis.limit is not None)
    return any(not divides(loop.axis.extent, loop.axis.limit or 0) for loop in loops)


def _adds_to_other_rows(nest: Nest) -> bool:
    """Some rows of a tile, and not all of them, add to one place in memory."""
    sums = (s for s in walk(nest.body) if isinstance(s, AccumulateInto))
    depends = (sum(s.index.coefficient(axis) != 0 for axis in nest.rows) for s in sums)
    return any(0 < count < len(nest.rows) for count in depends)
