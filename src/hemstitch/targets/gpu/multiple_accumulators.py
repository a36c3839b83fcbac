"""Long sums that each lane has for itself, of a column say, or of what all programs have left: many
terms side by side in the rows of a tile, where one after the other each would wait for memory, and
would be rounded as often as there are terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from hemstitch.kernel_ir.nodes import Accumulate, Init, Loop, Nest, walk
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu.tiling import Tiling, only_reduces, tile_loops


def multiple_accumulators(nest: Nest, tiling: Tiling, running: Container[str]) -> dict[str, int]:
    """How many terms of each accumulator, by its name. `running`: those whose value so far matters.
    Nothing where the rows of a tile are rows of the nest, or steps of a product."""
    if tiling.rows > 1 or tiling.k_tiles:
        return {}
    everything = walk((*nest.prologue, *nest.body))
    added = Counter(s.accumulator for s in everything if isinstance(s, Accumulate))
    counts: dict[str, int] = {}
    for tile in tile_loops(nest):
        count = min(GPU.accumulators, GPU.tile_elements // tiling.lanes[tile.axis].size)
        inside = {s.name for s in walk(tile.body) if isinstance(s, Init)}
        for loop in _long_sums(tile):
            names = {s.accumulator for s in loop.body if isinstance(s, Accumulate)}
            alone = all(n in inside and added[n] == 1 and n not in running for n in names)
            if count > 1 and alone:
                counts |= dict.fromkeys(names, count)
    return counts


def _long_sums(tile: Loop) -> Iterator[Loop]:
    for loop in walk(tile.body):
        if isinstance(loop, Loop) and only_reduces(loop) and loop.between is None:
            extent = loop.axis.extent
            if not isinstance(extent, int) or extent >= GPU.accumulated_terms:
                yield loop
