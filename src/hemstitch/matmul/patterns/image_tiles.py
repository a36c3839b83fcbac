"""Images that are made in parts: each element of a tile apart, for all tiles together. Takes a
part for each element and gives the images, as the reshapes and concatenations that say where the
parts lie in memory (`Materialisation.write`); elementwise work behind them goes to the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import TensorType

CHANNELS_LAST = (0, 2, 3, 1)  # of an image, seen so, or back:
CHANNELS_FIRST = (0, 3, 1, 2)
ALL = Range(0)
Grid = Sequence[Sequence[Node]]


@dataclass(frozen=True, slots=True)
class ImageTiling:
    """So many (`count`) images of `size`, in `tiles`, down and to the right, whose last ones may
    reach beyond. A part is [tiles of all images, channels]."""

    count: int
    size: tuple[int, int]
    tiles: tuple[int, int]

    def images(self, builder: Builder, grid: Grid) -> Node:
        """[count, channels, *size], of a part for each element of a tile."""
        count, (down, right) = self.count, self.tiles
        channels = grid[0][0].shape[1]
        lines = []
        for row in grid:
            apart = [builder.reshape(cell, (count, down, right, 1, channels)) for cell in row]
            beside = builder.concat(apart, 3)
            lines.append(builder.reshape(beside, (count, down, 1, right * len(row), channels)))
        height, width = down * len(grid), right * len(grid[0])
        rows = builder.reshape(builder.concat(lines, 2), (count * height * width, channels))
        whole = builder.reshape(rows, (count, height, width, channels))
        images = builder.slice(whole, (ALL,) * 4, (count, *self.size, channels))
        return builder.permute(images, CHANNELS_FIRST)


@dataclass(frozen=True, slots=True)
class Parts:
    """Images, and what they are made of."""

    images: Node
    tiling: ImageTiling
    grid: Grid

    @staticmethod
    def of(builder: Builder, tiling: ImageTiling, grid: Grid) -> Parts:
        return Parts(tiling.images(builder, grid), tiling, grid)

    @property
    def stored(self) -> Sequence[Node]:
        """The reshape of what had better be in memory, if there are several parts: whoever reads
        the images would look for the tile that an element is in."""
        (seen,) = self.images.inputs
        (rows,) = (seen.inputs[0] if seen.op is Op.SLICE else seen).inputs
        return [rows] if len(self.grid) * len(self.grid[0]) > 1 else []


def is_alike(operand: Node) -> bool:
    """It is the same all over an image, and for each of them."""
    if operand.op is Op.CONSTANT:
        return True
    if operand.op is not Op.BROADCAST or operand.type.rank != len(CHANNELS_LAST):
        return False
    count, _, *size = operand.inputs[0].shape
    return (count, *size) == (1, 1, 1)


def with_zeros(
    builder: Builder, images: Node, before: tuple[int, int], size: tuple[int, int]
) -> Node:
    """[count, *size, channels] of [count, height, width, channels]: so many zeros `before`, and
    what there is room for."""
    count, *sizes, channels = images.shape
    inside = [min(known(n), room - pad) for n, room, pad in zip(sizes, size, before)]
    seen = builder.slice(images, (ALL,) * 4, (count, *inside, channels))
    zero = builder.constant(0, images.type.dtype)
    return builder.pad(seen, (0, *before, 0), (count, *size, channels), zero)


@dataclass(slots=True)
class Behind:
    """The elementwise work behind a call that makes `parts`, of which so many nodes are `left`.
    `grids`: of its values so far. `beside`: what else they read."""

    parts: Parts
    left: int
    grids: dict[Node, Grid]
    beside: list[Node]

    @staticmethod
    def of(parts: Parts, nodes: int) -> Behind:
        return Behind(parts, nodes, {parts.images: parts.grid}, [])

    def is_read_by(self, node: Node) -> bool:
        return self.left > 0 and any(x in self.grids for x in node.inputs)

    def then(self, builder: Builder, node: Node) -> Node | None:
        """What `node` makes, an elementwise operation, made in parts; None if it reads others."""
        if not all(x in self.grids or is_alike(x) for x in node.inputs):
            return None
        rows, columns = len(self.parts.grid), len(self.parts.grid[0])
        grid = [[self._cell(builder, node, i, j) for j in range(columns)] for i in range(rows)]
        self.left -= 1
        self.beside += (x for x in node.inputs if x not in self.grids)
        self.parts = Parts.of(builder, self.parts.tiling, grid)
        self.grids[self.parts.images] = grid
        return self.parts.images

    def _cell(self, builder: Builder, node: Node, i: int, j: int) -> Node:
        shape = self.parts.grid[i][j].shape
        operands = [
            self.grids[x][i][j] if x in self.grids else _everywhere(builder, x, shape)
            for x in node.inputs
        ]
        type_ = TensorType(shape, node.type.dtype)
        return builder.make(node.op, *operands, attr=node.attr, type=type_)


def _everywhere(builder: Builder, x: Node, shape: tuple[Dim, ...]) -> Node:
    """`x`, which is alike all over images, in a part of this shape."""
    if x.op is Op.CONSTANT:
        return builder.make(x.op, attr=x.attr, type=TensorType(shape, x.type.dtype))
    (one,) = x.inputs
    return builder.broadcast(builder.reshape(one, one.shape[1:2]), shape)


def nodes_behind(
    result: Node, readers: Mapping[Node, Collection[Node]], roots: Collection[Node]
) -> int:
    """How many elementwise nodes follow `result`, such that others read the last of them alone.
    `readers`: of each node; `roots`: what others read beside."""
    inside, left, most = {result}, [*readers[result]], 0
    while left:
        node = left.pop(0)
        is_known = all(x in inside or is_alike(x) for x in node.inputs)
        if node in inside or not is_elementwise(node.op) or not is_known:
            continue
        inside.add(node)
        left += readers[node]
        read = [x for x in inside if x in roots or not inside.issuperset(readers[x])]
        most = len(inside) - 1 if len(read) == 1 else most
    return most
