"""Convolutions of images with windows of 3 x 3, as Winograd multiplies them (Lavin and Gray, "Fast
algorithms for convolutional neural networks", section 4.1): tiles of 2 x 2 results take 16
multiplications instead of 36. Takes a library call with its operands, gives what each of its
results is.

Each of 16 sums of the 4 x 4 elements that a tile reads is a matrix, of tiles by channels, and so is
each of 16 sums of a window; the 16 products of the ones with the others add up to the tile. All
these sums are elementwise work, so that planning keeps them in one kernel with the products.
The gradient of the images is a convolution of the other gradient. That of the weights goes the
same way backwards.

Rounding errors are as large as the library's. But what is infinite spreads as NaN over its tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from hemstitch.fusion.convolutions import (
    ALL,
    CHANNELS_FIRST,
    CHANNELS_LAST,
    Convolution,
    Sum,
    convolution_of,
    operands_of,
)
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import LibraryCall, Node, Op, Range
from hemstitch.ir.types import DType

TYPES = (DType.F32, DType.F64)  # half types would round the sums
WINDOW = 3
LEAST_CHANNELS = 32  # with fewer the sums take longer than the multiplications that they save
LEAST_TILES = 64  # with fewer those of the windows do
Grid = Sequence[Sequence[Node]]
Item = TypeVar("Item")


def opened_convolution(
    builder: Builder, call: LibraryCall, inputs: Sequence[Node]
) -> Convolution | Winograd | None:
    """How the call is written out; None if it is not."""
    return convolution_of(builder, call, inputs) or winograd_of(builder, call, inputs)


def winograd_of(builder: Builder, call: LibraryCall, inputs: Sequence[Node]) -> Winograd | None:
    found = operands_of(call, inputs)
    if found is None:
        return None
    given, operands = found
    x, weight = operands["x"], operands["weight"]
    padding = given["padding"]
    is_window = x.type.rank == 4 and weight.shape[2:] == (WINDOW, WINDOW)
    is_usual = (given["stride"], given["dilation"]) == ((1, 1), (1, 1))
    if not is_window or not is_usual or x.type.dtype not in TYPES:
        return None
    assert isinstance(padding, tuple)
    made = Winograd(builder, x, weight, operands.get("bias"), operands.get("gradient"), padding)
    is_narrow = min(map(known, weight.shape[:2])) < LEAST_CHANNELS
    is_padded = all(0 <= size < WINDOW for size in padding)
    return made if is_padded and not is_narrow and made.tiles >= LEAST_TILES else None


@dataclass(frozen=True, slots=True)
class Winograd:
    """`x` [count, channels, height, width] and `weight` [features, channels, 3, 3] give, or have
    for their `gradient`, [count, features, *size]. Zeros around `x`: `padding` on either side."""

    builder: Builder
    x: Node
    weight: Node
    bias: Node | None
    gradient: Node | None
    padding: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        height, width = (
            known(size) + 2 * pad - WINDOW + 1 for size, pad in zip(self.x.shape[2:], self.padding)
        )
        return height, width

    @property
    def tiles(self) -> int:
        """Of the results."""
        count, (down, right) = known(self.x.shape[0]), map(_halved, self.size)
        return count * down * right

    @property
    def fewer(self) -> int:
        """Multiplications than the library does, for each result but that of the bias."""
        features, channels = map(known, self.weight.shape[:2])
        height, width = self.size
        one_by_one = WINDOW * WINDOW * known(self.x.shape[0]) * height * width
        return (one_by_one - 16 * self.tiles) * features * channels

    @property
    def spared_bytes(self) -> Dim:
        """Less than nothing: what the library does not make, all matrices of sums, written and
        read. Planning takes off again what stays in a kernel."""
        features, channels = map(known, self.weight.shape[:2])
        sums = 16 * (self.tiles * (features + channels) + features * channels)
        return -2 * sums * self.x.type.dtype.bytes

    def result(self, number: int) -> tuple[Node, list[Sum]]:
        """The value of the call's result with this number, and the products in it."""
        if self.gradient is None:
            sums = self._tiled(self.x, self.padding, self.size)
            found, products = self._added(sums, self._windows(), self.size, self.bias)
        elif number == 0:
            # The windows that an element was in read it in the opposite order.
            around = WINDOW - 1 - self.padding[0], WINDOW - 1 - self.padding[1]
            height, width = map(known, self.x.shape[2:])
            sums = self._tiled(self.gradient, around, (height, width))
            rows = map(_turned, _turned(self._windows()))
            turned = [list(map(self._transposed, row)) for row in rows]
            found, products = self._added(sums, turned, (height, width))
        elif number == 1:
            return self._of_weight(self.gradient)
        else:
            return self.builder.reduce(Op.SUM, self.gradient, (0, 2, 3)), []
        return self.builder.permute(found, CHANNELS_FIRST), products

    def _windows(self) -> list[list[Node]]:
        """[channels, features] each."""
        shape = self.weight.shape[:2]
        cells = [
            [
                self.builder.slice(self.weight, (ALL, ALL, Range(i), Range(j)), (*shape, 1, 1))
                for j in range(WINDOW)
            ]
            for i in range(WINDOW)
        ]
        flat = [[self.builder.reshape(cell, shape) for cell in row] for row in cells]
        return [list(map(self._transposed, row)) for row in _both_ways(self._window, flat)]

    def _tiled(self, image: Node, padding: tuple[int, int], size: tuple[int, int]) -> Grid:
        """Sums of what each tile of `size` reads, [tiles, channels] each."""
        count, channels = image.shape[:2]
        down, right = map(_halved, size)
        room = count, 2 * down + 2, 2 * right + 2, channels
        zero = self.builder.constant(0, image.type.dtype)
        around = self.builder.pad(self._laid(image), (0, *padding, 0), room, zero)
        cells = [
            [self._every_second(around, i, j, down, right) for j in range(4)] for i in range(4)
        ]
        return _both_ways(self._tile, cells)

    def stored(self, number: int, value: Node) -> list[Node]:
        """Reshapes of what had better be in memory: 16 sums read each element of an image, and who
        reads the result, `value`, would look for the tile that an element is in."""
        if self.gradient is None:
            images = [self.x]
        else:
            images = [self.gradient] if number == 0 else [self.x, self.gradient]
        found = list(map(self._flat, images))
        if number == 0:
            (laid,) = value.inputs
            found += laid.inputs
        return found

    def _flat(self, image: Node) -> Node:
        laid = self.builder.permute(image, CHANNELS_LAST)
        *sizes, channels = map(known, laid.shape)
        return self.builder.reshape(laid, (prod(sizes), channels))

    def _laid(self, image: Node) -> Node:
        count, channels, height, width = image.shape
        return self.builder.reshape(self._flat(image), (count, height, width, channels))

    def _every_second(self, image: Node, i: int, j: int, down: int, right: int) -> Node:
        """[tiles, channels]"""
        count, _, _, channels = image.shape
        ranges = ALL, Range(i, 2), Range(j, 2), ALL
        part = self.builder.slice(image, ranges, (count, down, right, channels))
        return self.builder.reshape(part, (known(count) * down * right, channels))

    def _added(
        self, sums: Grid, windows: Grid, size: tuple[int, int], bias: Node | None = None
    ) -> tuple[Node, list[Sum]]:
        """[count, height, width, features], and the products in it."""
        builder, (down, right) = self.builder, map(_halved, size)
        products = [
            [builder.dot(tile, window) for tile, window in zip(*rows)]
            for rows in zip(sums, windows)
        ]
        count, features = self.x.shape[0], products[0][0].shape[1]
        parts = []
        for row in _both_ways(self._results, products):
            if bias is not None:
                row = [self._add(cell, builder.broadcast(bias, cell.shape)) for cell in row]
            apart = [builder.reshape(cell, (count, down, right, 1, features)) for cell in row]
            beside = builder.concat(apart, 3)
            parts.append(builder.reshape(beside, (count, down, 1, 2 * right, features)))
        whole = builder.reshape(builder.concat(parts, 2), (count, 2 * down, 2 * right, features))
        found = builder.slice(whole, (ALL,) * 4, (count, *size, features))
        rows = builder.reshape(found, (known(count) * prod(size), features))
        return builder.reshape(rows, found.shape), [
            Sum((product,), product) for row in products for product in row
        ]

    def _of_weight(self, gradient: Node) -> tuple[Node, list[Sum]]:
        builder, (down, right) = self.builder, map(_halved, self.size)
        count, features = gradient.shape[:2]
        zero = builder.constant(0, gradient.type.dtype)
        even = builder.pad(
            self._laid(gradient), (0,) * 4, (count, 2 * down, 2 * right, features), zero
        )
        cells = [[self._every_second(even, i, j, down, right) for j in range(2)] for i in range(2)]
        spread = _both_ways(self._spread, cells)
        sums = self._tiled(self.x, self.padding, self.size)
        products = [
            [builder.dot(self._transposed(g), tile) for g, tile in zip(*rows)]
            for rows in zip(spread, sums)
        ]
        shape = self.weight.shape
        rows = []
        for row in _both_ways(self._gathered, products):
            apart = [builder.reshape(cell, (*shape[:2], 1, 1)) for cell in row]
            rows.append(builder.concat(apart, 3))
        return builder.concat(rows, 2), [Sum((p,), p) for row in products for p in row]

    def _tile(self, a: Node, b: Node, c: Node, d: Node) -> list[Node]:
        return [self._sub(a, c), self._add(b, c), self._sub(c, b), self._sub(b, d)]

    def _results(self, a: Node, b: Node, c: Node, d: Node) -> list[Node]:
        return [self._add(self._add(b, c), a), self._sub(self._sub(b, c), d)]

    def _window(self, a: Node, b: Node, c: Node) -> list[Node]:
        ends, middle = self._half(self._add(a, c)), self._half(b)
        return [a, self._add(ends, middle), self._sub(ends, middle), c]

    def _spread(self, a: Node, b: Node) -> list[Node]:
        """`_results` backwards, as the two below."""
        return [a, self._add(a, b), self._sub(a, b), self.builder.make(Op.NEG, b)]

    def _gathered(self, a: Node, b: Node, c: Node, d: Node) -> list[Node]:
        """`_window` backwards."""
        both = self._half(self._add(b, c))
        return [self._add(a, both), self._half(self._sub(b, c)), self._add(both, d)]

    def _transposed(self, matrix: Node) -> Node:
        return self.builder.permute(matrix, (1, 0))

    def _add(self, a: Node, b: Node) -> Node:
        return self.builder.make(Op.ADD, a, b)

    def _sub(self, a: Node, b: Node) -> Node:
        return self.builder.make(Op.SUB, a, b)

    def _half(self, a: Node) -> Node:
        return self.builder.make(Op.MUL, a, self.builder.constant(0.5, a.type.dtype, a.shape))


def _halved(size: int) -> int:
    return -(-size // 2)


def _turned(sums: Sequence[Item]) -> list[Item]:
    """Of a window in the opposite order: those between the ends are the same."""
    first, *between, last = sums
    return [last, *between, first]


def _both_ways(sums: Callable[..., list[Node]], grid: Grid) -> list[list[Node]]:
    """Of the cells of each column, and then of each row of these."""
    columns = [sums(*column) for column in zip(*grid)]
    return [sums(*row) for row in zip(*columns)]
