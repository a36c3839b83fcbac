"""Random numbers: one Philox for each four neighbours in a row, where the lanes allow it."""

from __future__ import annotations

from hemstitch.ir.dims import divides
from hemstitch.kernel_ir.index import Index
from hemstitch.targets.gpu.scope import Tile, TileValue, TritonScope


def uniform(scope: TritonScope, seed: TileValue, index: Index) -> TileValue:
    """A tile of f32 in [0, 1) for the elements at `index` (see hemstitch.ir.philox)."""
    place, tile = scope.index(index), scope.tile
    if tile is not None and _is_aligned_by_four(tile, index):
        row_index = Index(tuple(t for t in index.terms if t[0] is not tile.axis), index.constant)
        first = scope.index(row_index).text + (f" + {tile.first}" if tile.first else "")
        rows = scope.rows if place.rows else 1
        text = f"device.uniform4({seed.text}, {first}, {rows}, {tile.size})"
        return TileValue(text, place.rows, place.lanes)
    return TileValue(f"device.uniform({seed.text}, {place.text})", place.rows, place.lanes)


def _is_aligned_by_four(tile: Tile, index: Index) -> bool:
    """Four neighbouring lanes are one counter's four words."""
    if tile.size % 4 or index.coefficient(tile.axis) != 1:
        return False
    coefficients = [c for variable, c in index.terms if variable is not tile.axis]
    return all(divides(4, size) for size in (*coefficients, index.constant))
