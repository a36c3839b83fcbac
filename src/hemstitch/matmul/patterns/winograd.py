"""Convolutions of images with windows of 3 x 3, as Winograd multiplies them (Lavin and Gray, "Fast
algorithms for convolutional neural networks", section 4.1): tiles of 4 x 2 results take 24
multiplications instead of 72, those of 2 x 2 16 instead of 36, and 25 where the stride is two.
Takes a library call with its operands, gives what each of its results is.

Each of 24 sums of the 6 x 4 elements that a tile reads is a matrix, of tiles by channels, and so is
each of 24 sums of a window; the 24 products of the ones with the others add up to the tile. All
these sums are elementwise work, so that planning keeps them in one kernel with the products.
The gradient of the images is a convolution of the other gradient. That of the weights goes the
same way backwards, with small tiles.

Rounding errors are as large as the library's. But what is infinite spreads as NaN over its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.patterns.bilinear import (
    BACKWARD,
    FORWARD,
    LONG,
    SHORT,
    WINDOW,
    Bilinear,
    Matrix,
    combined,
    transposed,
)
from hemstitch.matmul.patterns.convolutions import plain_convolution
from hemstitch.matmul.patterns.image_tiles import (
    ALL,
    CHANNELS_LAST,
    Grid,
    ImageTiling,
    Parts,
    with_zeros,
)
from hemstitch.matmul.patterns.inlined import Inlined, MatmulSum

TYPES = (DType.F32, DType.F64)  # half types would round the sums
Ways = tuple[Bilinear, Bilinear]  # down and to the right


def winograd_of(builder: Builder, call: Call, inputs: Sequence[Node]) -> Winograd | None:
    plain = plain_convolution(call, inputs)
    if plain is None:
        return None
    x, weight, how = plain.x, plain.weight, plain.how
    is_window = x.type.rank == 4 and weight.shape[2:] == (WINDOW, WINDOW)
    if not is_window or how.dilation != (1, 1) or x.type.dtype not in TYPES:
        return None
    if not all(map(_is_padded, how.stride, how.padding)):
        return None
    (down, right), (above, left) = how.stride, how.padding
    winograd = Winograd(
        *(builder, x, weight, plain.bias, plain.gradient),
        *((down, right), (above, left), plain.weight_sums),
    )
    is_narrow = min(map(known, weight.shape[:2])) < CPU.winograd_channels
    return winograd if not is_narrow and winograd.tiles >= CPU.winograd_tiles else None


def _is_padded(stride: int, padding: int) -> bool:
    """As may be for such a stride."""
    return 0 <= padding < WINDOW if stride == 1 else (stride, padding) == (2, 1)


@dataclass(frozen=True, slots=True)
class Winograd:
    """`x` [count, channels, height, width] and `weight` [features, channels, 3, 3] give, or have
    for their `gradient`, [count, features, *size]. Zeros around `x`: `padding` on either side.
    `sums`: those of the windows, where the call has them as a further operand."""

    builder: Builder
    x: Node
    weight: Node
    bias: Node | None
    gradient: Node | None
    strides: tuple[int, int]
    padding: tuple[int, int]
    sums: Node | None = None

    @property
    def size(self) -> tuple[int, int]:
        height, width = (
            (known(size) + 2 * pad - WINDOW) // stride + 1
            for size, pad, stride in zip(self.x.shape[2:], self.padding, self.strides)
        )
        return height, width

    @property
    def tiles(self) -> int:
        """Of the results, if they are small ones."""
        return self._count(self._short, self.size)

    def fewer(self, number: int) -> int:
        """Multiplications than the library does for the result with this number, no bias."""
        features, channels = map(known, self.weight.shape[:2])
        one_by_one = WINDOW * WINDOW * known(self.x.shape[0]) * prod(self.size)
        products, tiles = self._multiplied(number)
        return (one_by_one - products * tiles) * features * channels

    def spared_bytes(self, number: int) -> int:
        """Less than nothing: what the library does not make, all matrices of sums, written and
        read. Planning takes off again what stays in a kernel."""
        features, channels = map(known, self.weight.shape[:2])
        products, tiles = self._multiplied(number)
        sums = products * (tiles * (features + channels) + features * channels)
        return -2 * sums * self.x.type.dtype.bytes

    def _multiplied(self, number: int) -> tuple[int, int]:
        """Of each tile, and how many tiles there are."""
        ways, size = self._forward, self.size
        if self.gradient is not None:
            ways, size = (self._backward, self._read) if number == 0 else (self._short, size)
        return _products(ways), self._count(ways, size)

    def _count(self, ways: Ways, size: tuple[int, int]) -> int:
        """Of tiles."""
        return known(self.x.shape[0]) * prod(_tiles(ways, size))

    @property
    def _read(self) -> tuple[int, int]:
        height, width = map(known, self.x.shape[2:])
        return height, width

    @property
    def _forward(self) -> Ways:
        return _longer(self._short, known(self.x.shape[0]), self.size)

    @property
    def _backward(self) -> Ways:
        down, right = self.strides
        return _longer((BACKWARD[down], BACKWARD[right]), known(self.x.shape[0]), self._read)

    @property
    def _short(self) -> Ways:
        down, right = self.strides
        return FORWARD[down], FORWARD[right]

    def constant_operand(self) -> Node | None:
        is_known = self.sums is not None or self.gradient is not None
        return None if is_known else self.sums_of_windows()

    def result(self, number: int) -> Inlined:
        """The call's result with this number."""
        saved = self.spared_bytes(number), self.fewer(number)
        return self._result(number).as_unit(self.images, *saved)

    def _result(self, number: int) -> Inlined:
        if self.gradient is None:
            return self._output()
        if number == 0:
            return self._of_x(self.gradient)
        if number == 1:
            return self._of_weight(self.gradient)
        return Inlined(self.builder.reduce(Op.SUM, self.gradient, (0, 2, 3)), [])

    def _output(self) -> Inlined:
        ways, size = self._forward, self.size
        sums = self._tiled(ways, self.x, self.padding, size)
        return self._added(ways, sums, self._given() or self._turned(), size, self.bias)

    def _of_x(self, gradient: Node) -> Inlined:
        """The windows that an element was in read it in the opposite order."""
        (down, right), (above, left) = self.strides, self.padding
        ways, around = self._backward, (_before(down, above), _before(right, left))
        sums = self._tiled(ways, gradient, around, self._read)
        return self._added(ways, sums, self._windows(ways, -1), self._read)

    def sums_of_windows(self) -> Node:
        """[products, channels, features]: what the weight alone decides."""
        cells = [cell for row in self._turned() for cell in row]
        return self.builder.concat([self.builder.reshape(c, (1, *c.shape)) for c in cells], 0)

    def _turned(self) -> Grid:
        """[channels, features] each."""
        return [list(map(self._transposed, row)) for row in self._windows(self._forward, 1)]

    def _given(self) -> Grid | None:
        """The same, where they are there."""
        if self.sums is None:
            return None
        across, shape = self._forward[1].products, self.sums.shape[1:]
        cells = [
            self.builder.slice(self.sums, (Range(k), ALL, ALL), (1, *shape))
            for k in range(_products(self._forward))
        ]
        flat = [self.builder.reshape(cell, shape) for cell in cells]
        return [flat[k : k + across] for k in range(0, len(flat), across)]

    def _windows(self, ways: Ways, order: int) -> Grid:
        """[features, channels] each, of the window in this order of rows and columns."""
        shape = self.weight.shape[:2]
        cells = [
            [
                self.builder.slice(self.weight, (ALL, ALL, Range(i), Range(j)), (*shape, 1, 1))
                for j in range(WINDOW)[::order]
            ]
            for i in range(WINDOW)[::order]
        ]
        flat = [[self.builder.reshape(cell, shape) for cell in row] for row in cells]
        return self._both_ways([way.window for way in ways], flat)

    def _tiled(
        self, ways: Ways, image: Node, padding: tuple[int, int], size: tuple[int, int]
    ) -> Grid:
        """Sums of what each tile of `size` reads, [tiles, channels] each."""
        tiles = _tiles(ways, size)
        down, right = (way.room(count) for way, count in zip(ways, tiles))
        around = with_zeros(self.builder, self._laid(image), padding, (down, right))
        below, beside = ways
        cells = [
            [
                self._every(around, (Range(i, below.apart), Range(j, beside.apart)), tiles)
                for j in range(beside.reads)
            ]
            for i in range(below.reads)
        ]
        return self._both_ways([way.tile for way in ways], cells)

    @property
    def images(self) -> Sequence[Node]:
        """Reshapes of what had better be in memory: many sums read each element."""
        read = [self.x] if self.gradient is None else [self.x, self.gradient]
        return [*map(self._flat, read)]

    def _flat(self, image: Node) -> Node:
        laid = self.builder.permute(image, CHANNELS_LAST)
        *sizes, channels = map(known, laid.shape)
        return self.builder.reshape(laid, (prod(sizes), channels))

    def _laid(self, image: Node) -> Node:
        count, channels, height, width = image.shape
        return self.builder.reshape(self._flat(image), (count, height, width, channels))

    def _every(self, image: Node, ranges: tuple[Range, Range], tiles: tuple[int, int]) -> Node:
        """[tiles, channels]: an element of each."""
        count, _, _, channels = image.shape
        part = self.builder.slice(image, (ALL, *ranges, ALL), (count, *tiles, channels))
        return self.builder.reshape(part, (known(count) * prod(tiles), channels))

    def _added(
        self,
        ways: Ways,
        sums: Grid,
        windows: Grid,
        size: tuple[int, int],
        bias: Node | None = None,
    ) -> Inlined:
        products = [
            [self.builder.dot(tile, window) for tile, window in zip(*rows)]
            for rows in zip(sums, windows)
        ]
        grid = self._both_ways([way.results for way in ways], products)
        if bias is not None:
            grid = [[self._biased(cell, bias) for cell in row] for row in grid]
        tiling = ImageTiling(known(self.x.shape[0]), size, _tiles(ways, size))
        matmuls = [MatmulSum((product,), product) for row in products for product in row]
        return Inlined.of(Parts.of(self.builder, tiling, grid), matmuls)

    def _of_weight(self, gradient: Node) -> Inlined:
        builder, ways = self.builder, self._short
        tiles, (down, right) = _tiles(ways, self.size), (len(way.results) for way in ways)
        size = down * tiles[0], right * tiles[1]
        even = with_zeros(builder, self._laid(gradient), (0, 0), size)
        cells = [
            [self._every(even, (Range(i, down), Range(j, right)), tiles) for j in range(right)]
            for i in range(down)
        ]
        spread = self._both_ways([transposed(way.results) for way in ways], cells)
        sums = self._tiled(ways, self.x, self.padding, self.size)
        products = [
            [builder.dot(self._transposed(g), tile) for g, tile in zip(*rows)]
            for rows in zip(spread, sums)
        ]
        shape = self.weight.shape
        rows = []
        for row in self._both_ways([transposed(way.window) for way in ways], products):
            apart = [builder.reshape(cell, (*shape[:2], 1, 1)) for cell in row]
            rows.append(builder.concat(apart, 3))
        matmuls = [MatmulSum((product,), product) for row in products for product in row]
        return Inlined(builder.concat(rows, 2), matmuls)

    def _both_ways(self, matrices: Sequence[Matrix], grid: Grid) -> list[list[Node]]:
        """Sums of the cells of each column, and then of each row of these."""
        down, right = matrices
        columns = [combined(self.builder, down, column) for column in zip(*grid)]
        return [combined(self.builder, right, row) for row in zip(*columns)]

    def _transposed(self, matrix: Node) -> Node:
        return self.builder.permute(matrix, (1, 0))

    def _biased(self, cell: Node, bias: Node) -> Node:
        return self.builder.make(Op.ADD, cell, self.builder.broadcast(bias, cell.shape))


def _tiles(ways: Ways, size: tuple[int, int]) -> tuple[int, int]:
    down, right = (way.tiles(results) for way, results in zip(ways, size))
    return down, right


def _longer(ways: Ways, count: int, size: tuple[int, int]) -> Ways:
    """With tiles of four results one way where there is no stride, if that takes fewer products and
    leaves enough tiles. Both ways would round three times as much."""
    down, right = ways
    choices = [(LONG, right)] * (down is SHORT) + [(down, LONG)] * (right is SHORT)
    enough = [
        choice for choice in choices if count * prod(_tiles(choice, size)) >= CPU.winograd_tiles
    ]
    return min((ways, *enough), key=lambda choice: _products(choice) * prod(_tiles(choice, size)))


def _products(ways: Ways) -> int:
    return prod(way.products for way in ways)


def _before(stride: int, padding: int) -> int:
    """Zeros before a gradient: of the windows that the first element is in, those that begin before
    the first one, as far as a tile reads them."""
    return WINDOW - 1 - padding if stride == 1 else 0
