"""Convolutions of images of few channels, as a first layer's of colours, as products of matrices.
Takes a library call with its operands, gives what it makes.

A line of a window is a row of so many elements that lie side by side, and its windows overlap
(`Op.UNFOLD`): no matrix of windows is ever in memory, which would be as many times as large as the
image as a window has places for each step. Two lines of results are made together: those lines of a
window that meet the same lines of the image, as every second one if windows are two apart, are
multiplied as Toom and Cook multiply polynomials (`bilinear.py`), 7 lines by 9 products instead of
14. Products that count alike in the results are added up in registers
(`matmul/lowering/batch_reduce.py`). The gradients stay with the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.patterns.bilinear import (
    MOST_AT_ONCE,
    Bilinear,
    combined,
    one_by_one,
    toom_cook,
    transposed,
)
from hemstitch.matmul.patterns.convolutions import plain_convolution
from hemstitch.matmul.patterns.image_tiles import ALL, CHANNELS_LAST, ImageTiling, Parts, with_zeros
from hemstitch.matmul.patterns.inlined import Inlined, MatmulSum

TYPE = DType.F32  # half types would round each line's product
MOST_LINES = 11  # of a window; each is a matmul, so this bounds the size of the graph
# Counts of the algorithm: operations that it takes to make two lines of results together, for each
# element of what is then multiplied, and for each pair of results.
OF_LINES, OF_RESULTS = 5, 10


def direct_convolution_of(
    builder: Builder, call: Call, inputs: Sequence[Node]
) -> DirectConvolution | None:
    """None if it is none that is written out here."""
    plain = plain_convolution(call, inputs)
    if plain is None or plain.gradient is not None:
        return None
    x, weight, how = plain.x, plain.weight, plain.how
    is_image = x.type.rank == len(CHANNELS_LAST) and x.type.dtype is TYPE
    if not is_image or how.dilation != (1, 1):
        return None
    (down, right), (above, left) = how.stride, how.padding
    strides, padding = (down, right), (above, left)
    convolution = DirectConvolution(
        builder, x, weight, plain.bias, strides, padding, plain.weight_sums
    )
    features, channels, lines, _ = map(known, weight.shape)
    return (
        convolution
        if channels <= CPU.direct_channels
        and features >= CPU.direct_features
        and 1 < lines <= MOST_LINES
        and convolution.line >= CPU.direct_steps
        and convolution.size[1] >= CPU.direct_columns
        else None
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """So many lines of a window, each `apart` from the one before and multiplied as `way` says."""

    first: int
    apart: int
    way: Bilinear

    @property
    def results(self) -> int:
        """Lines of them in a tile."""
        return len(self.way.results)

    def lines(self, every: Sequence[Node]) -> Sequence[Node]:
        count = len(self.way.window[0])
        return every[self.first : self.first + count * self.apart : self.apart]


def _pieces(lines: int, apart: int) -> Sequence[Piece]:
    """Of a window of so many lines, where windows are so many lines apart."""
    together = MOST_AT_ONCE * apart
    return [
        Piece(first, apart, toom_cook(len(range(first, min(lines, begin + together), apart))))
        for begin in range(0, lines, together)
        for first in range(begin, min(lines, begin + apart))
    ]


def _products(pieces: Sequence[Piece]) -> int:
    return sum(piece.way.products for piece in pieces)


@dataclass(frozen=True, slots=True)
class DirectConvolution:
    """`x` [count, channels, height, width] and `weight` [features, channels, lines, columns] give
    [count, features, *size]. Zeros around `x`: `padding` on either side. `sums`: of the windows'
    lines, where the call has them as a further operand."""

    builder: Builder
    x: Node
    weight: Node
    bias: Node | None
    strides: tuple[int, int]
    padding: tuple[int, int]
    sums: Node | None = None

    @property
    def size(self) -> tuple[int, int]:
        height, width = (
            (known(size) + 2 * pad - known(window)) // stride + 1
            for size, pad, window, stride in zip(
                self.x.shape[2:], self.padding, self.weight.shape[2:], self.strides
            )
        )
        return height, width

    @property
    def line(self) -> int:
        """Elements of a window's line."""
        return known(self.weight.shape[3]) * known(self.weight.shape[1])

    def _fewer(self) -> int:
        """Multiplications than the library does."""
        features, _, lines, _ = map(known, self.weight.shape)
        height, width = self.size
        fewer = lines * height - _products(self._pieces) * self._tiling.tiles[0]
        return fewer * known(self.x.shape[0]) * width * self.line * features

    def constant_operand(self) -> Node | None:
        return self.sums_of_windows() if self.sums is None else None

    def result(self, number: int) -> Inlined:
        """The call's only result."""
        return self._output().as_unit([self._lines()], 0, self._fewer())

    def _output(self) -> Inlined:
        alike: dict[tuple[float, ...], list[Node]] = {}
        for piece, lines, windows in zip(self._pieces, self._sums(), self._windows()):
            for counts, line, window in zip(transposed(piece.way.results), lines, windows):
                alike.setdefault(counts, []).append(self._product(line, window))
        sums = [self._added(products) for products in alike.values()]
        totals = [matmul_sum.total for matmul_sum in sums]
        cells = combined(self.builder, transposed(tuple(alike)), totals)
        grid = [[self._biased(cell)] for cell in cells]
        return Inlined.of(Parts.of(self.builder, self._tiling, grid), sums)

    def sums_of_windows(self) -> Node:
        """[products, line, features]: what the weight alone decides."""
        windows = [window for piece in self._windows() for window in piece]
        return self.builder.concat([self.builder.reshape(w, (1, *w.shape)) for w in windows], 0)

    @property
    def _tiling(self) -> ImageTiling:
        height, width = self.size
        results = self._pieces[0].results
        return ImageTiling(known(self.x.shape[0]), self.size, (-(-height // results), width))

    @property
    def _pieces(self) -> Sequence[Piece]:
        """As many as make two lines of results together, or one that makes a line by itself."""
        features, _, lines, _ = map(known, self.weight.shape)
        pieces = _pieces(lines, self.strides[0])
        products = _products(pieces)
        spared = (pieces[0].results * lines - products) * self.line * features
        takes = OF_LINES * products * self.line + OF_RESULTS * features
        is_gain = self.size[0] > 1 and spared > takes
        return pieces if is_gain else [Piece(0, 1, one_by_one(lines))]

    def _windows(self) -> Sequence[Sequence[Node]]:
        """Sums of the window's lines, [line, features] each."""
        if self.sums is not None:
            return self._given(self.sums)
        builder, (features, _, lines, _) = self.builder, self.weight.shape
        turned = builder.permute(self.weight, (2, 3, 1, 0))
        matrix = builder.reshape(turned, (lines, self.line, features))
        lines_of_window = [self._part(matrix, line) for line in range(known(lines))]
        return [combined(builder, p.way.window, p.lines(lines_of_window)) for p in self._pieces]

    def _given(self, sums: Node) -> Sequence[Sequence[Node]]:
        left = iter([self._part(sums, number) for number in range(_products(self._pieces))])
        return [[next(left) for _ in piece.way.window] for piece in self._pieces]

    def _part(self, matrices: Node, number: int) -> Node:
        """One of them."""
        shape = matrices.shape[1:]
        part = self.builder.slice(matrices, (Range(number), ALL, ALL), (1, *shape))
        return self.builder.reshape(part, shape)

    def _sums(self) -> Sequence[Sequence[Node]]:
        """Of the lines that each tile reads, [tiles of all images, elements of a line] each."""
        builder, lines = self.builder, self._lines()
        (count, _, elements), (tiles, _) = lines.shape, self._tiling.tiles
        apart = self.strides[0] * self._pieces[0].results
        sums_of_pieces = []
        for piece in self._pieces:
            cells = [
                builder.slice(
                    lines,
                    (ALL, Range(piece.first + piece.apart * line, apart), ALL),
                    (count, tiles, elements),
                )
                for line in range(piece.way.reads)
            ]
            sums = combined(builder, piece.way.tile, cells)
            sums_of_pieces.append(
                [builder.reshape(s, (known(count) * tiles, elements)) for s in sums]
            )
        return sums_of_pieces

    def _product(self, lines: Node, window: Node) -> Node:
        """[tiles of all images, features]"""
        channels, (_, width) = known(self.x.shape[1]), self.size
        windows = self.builder.unfold(lines, 1, self.line, self.strides[1] * channels)
        rows = known(windows.shape[0]) * width
        return self.builder.dot(self.builder.reshape(windows, (rows, self.line)), window)

    def _added(self, products: Sequence[Node]) -> MatmulSum:
        total = products[0]
        for product in products[1:]:
            total = self.builder.make(Op.ADD, total, product)
        return MatmulSum(tuple(products), total)

    def _biased(self, cell: Node) -> Node:
        if self.bias is None:
            return cell
        return self.builder.make(Op.ADD, cell, self.builder.broadcast(self.bias, cell.shape))

    def _lines(self) -> Node:
        """[count, lines, elements of a line]: zeros around, as far as tiles reach."""
        (tiles, _), (_, width) = self._tiling.tiles, self.size
        reached = (
            (results - 1) * stride + known(window)
            for results, stride, window in zip(
                (self._pieces[0].results * tiles, width), self.strides, self.weight.shape[2:]
            )
        )
        height, width = reached
        laid = self.builder.permute(self.x, CHANNELS_LAST)
        around = with_zeros(self.builder, laid, self.padding, (height, width))
        count, *_, channels = around.shape
        return self.builder.reshape(around, (count, height, width * known(channels)))
