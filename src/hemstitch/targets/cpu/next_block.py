"""What the next block of a nest's rows will read and write of the arguments. Products of this block
ask for it meanwhile (`micro_kernel.py`): they find all they need in caches, so that memory is idle,
and between them rows go by, each of which would wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from hemstitch.ir.dims import Dim
from hemstitch.kernel_ir.index import Axis, Computed, Index
from hemstitch.kernel_ir.nodes import Buffer, Load, Loop, Nest, Role, Store
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.lowering.tile_matmul import TileMatmul


@dataclass(frozen=True, slots=True)
class PrefetchRegion:
    """So many `bytes` from an index on."""

    buffer: Buffer
    index: Index
    bytes: int


@dataclass(slots=True)
class _PrefetchingMatmul:
    """A product of so many `steps`, all tiles together, and the `regions` that it asks for."""

    steps: int
    regions: list[PrefetchRegion] = field(default_factory=list)

    @property
    def bytes_per_step(self) -> float:
        """Bytes a step."""
        return sum(region.bytes for region in self.regions) / self.steps


def prefetched_regions(nest: Nest) -> Mapping[str, list[PrefetchRegion]]:
    """By which product, by its name: the more steps it has, the more."""
    loops = list(_loops(nest))
    matmuls = {}
    for tile in filter(None, map(TileMatmul.of, loops)):
        sizes = (tile.contract.axis.extent, tile.rows.extent, tile.columns)
        known = [size for size in sizes if isinstance(size, int) and size > 0]
        if len(known) == len(sizes) and known[0] <= CPU.next_block_steps:
            matmuls[tile.contract.name] = _PrefetchingMatmul(prod(known))
    regions = dict.fromkeys(region for loop in loops for region in _regions(loop, nest))
    for region in sorted(regions, key=lambda region: -region.bytes) if matmuls else ():
        min(matmuls.values(), key=lambda matmul: matmul.bytes_per_step).regions.append(region)
    return {name: matmul.regions for name, matmul in matmuls.items()}


def _loops(nest: Nest) -> Iterator[Loop]:
    """Those over the rows of a block."""
    for loop in nest.body if nest.rows else ():
        if isinstance(loop, Loop) and loop.axis.outer is nest.rows[-1]:
            yield loop


def _regions(loop: Loop, nest: Nest) -> Iterator[PrefetchRegion]:
    tile = TileMatmul.of(loop)
    accesses: list[tuple[Load | Store, Axis, Dim]] = []
    if tile is not None:
        steps = tile.contract.axis
        accesses = [
            (tile.operands[0].left, steps, steps.extent),
            (tile.store, tile.lanes, tile.columns),
        ]
    for inner in loop.body if tile is None else ():
        if isinstance(inner, Loop) and inner.lanes:
            own = (s for s in inner.body if isinstance(s, Load | Store))
            accesses += [(s, inner.axis, inner.axis.extent) for s in own]
    for access, lane, width in accesses:
        region = _region(access, lane, width, loop.axis, nest)
        if region is not None:
            yield region


def _region(
    access: Load | Store, lane: Axis, width: Dim, rows: Axis, nest: Nest
) -> PrefetchRegion | None:
    """Where rows of this width lie one behind the other."""
    buffer, index, block = access.buffer, access.index, nest.rows[-1]
    row, count, size = index.coefficient(rows), rows.extent, buffer.size
    if buffer.role not in (Role.INPUT, Role.OUTPUT) or index.coefficient(lane) != 1:
        return None
    if not isinstance(row, int) or not isinstance(count, int) or not isinstance(size, int):
        return None
    if not isinstance(width, int) or row > width:
        return None
    is_affine = not any(isinstance(variable, Computed) for variable, _ in index.terms)
    block_step = index.coefficient(block)
    if not is_affine or row * count != block_step or not 0 < row * count < size:
        return None
    if size * buffer.dtype.bytes < CPU.next_block_bytes:
        return None
    terms = tuple((v, step) for v, step in index.terms if v in nest.rows)
    return PrefetchRegion(
        buffer, Index(terms, index.constant + block_step), row * count * buffer.dtype.bytes
    )
