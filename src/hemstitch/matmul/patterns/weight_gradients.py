"""Gradients of a convolution's weights as products of matrices, for images that lie by channels.
Takes a library call with its operands, gives what it makes; the gradient of the images stays with
the library.

With vectors of eight elements the library goes over all lines of an image once for each eight of
its channels, and takes half a cache line of each pixel. Where a line is larger than the first cache
this takes three to five times as long as the products.

A line of a window is a row of so many elements that lie side by side, and the windows of all
images overlap (`Op.UNFOLD`), so that no matrix of windows is ever in memory. Zeros around the
images, and behind the gradient's lines, make the lines of both equally long: then the windows of
all positions are one axis of one stride, which a product adds up along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call, Convolution, ConvolutionBackward, StructuredCall
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Machine
from hemstitch.matmul.patterns.convolutions import plain_convolution
from hemstitch.matmul.patterns.image_tiles import ALL, CHANNELS_LAST, with_zeros
from hemstitch.matmul.patterns.inlined import Inlined, MatmulSum

TYPE = DType.F32
MOST_LINES = 11  # of a window; each is a matmul, so this bounds the size of the graph


def weight_gradient_of(
    builder: Builder, call: Call, inputs: Sequence[Node], machine: Machine | None
) -> WeightGradient | None:
    """None if it is none that is written out here."""
    plain = plain_convolution(call, inputs)
    if (
        machine is None
        or machine.lanes != CPU.gradient_lanes
        or plain is None
        or plain.gradient is None
    ):
        return None
    x, weight, gradient, how = plain.x, plain.weight, plain.gradient, plain.how
    if not plain.wanted[1] or (how.stride, how.dilation) != ((1, 1), (1, 1)):
        return None
    if x.type.dtype is not TYPE:
        return None
    line = TYPE.bytes * max(
        known(image.shape[1]) * known(image.shape[3]) for image in (x, gradient)
    )
    lines, columns = map(known, weight.shape[2:])
    if (
        line <= CPU.gradient_l1_share * machine.l1_bytes
        or lines * columns == 1
        or lines > MOST_LINES
    ):
        return None
    padding = how.padding[0], how.padding[1]
    return WeightGradient(builder, call, how, inputs, x, weight, gradient, padding)


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """Of `weight` [features, channels, lines, columns], where `x` [count, channels, height, width]
    with so many zeros around has the `gradient` [count, features, *size]. `call`, of `inputs`: for
    this and for the gradient of `x`."""

    builder: Builder
    call: Call
    how: Convolution
    inputs: Sequence[Node]
    x: Node
    weight: Node
    gradient: Node
    padding: tuple[int, int]

    def fewer(self, number: int) -> int:
        """Multiplications that take as long as the library takes longer: it did 17 to 25 of 105
        multiplications and additions in a nanosecond (Zen 3, 32 to 128 channels)."""
        products = prod(map(known, self.gradient.shape)) * prod(map(known, self.weight.shape[1:]))
        return CPU.gradient_excess * products if number == 1 else 0

    def spared_bytes(self, number: int) -> int:
        """Less than nothing: the copies with zeros."""
        channels = known(self.x.shape[1]) + known(self.gradient.shape[1])
        return -2 * self._positions * channels * TYPE.bytes if number == 1 else 0

    @property
    def images(self) -> Sequence[Node]:
        """Reshapes of what had better be in memory: products add up along it."""
        return [self._flat(self.x, self.padding), self._flat(self.gradient, (0, 0))]

    def constant_operand(self) -> None:
        """Gradients have none."""

    def result(self, number: int) -> Inlined:
        """The call's result with this number."""
        saved = self.spared_bytes(number), self.fewer(number)
        return self._result(number).as_unit(self.images, *saved)

    def _result(self, number: int) -> Inlined:
        if number == 0:
            return Inlined(self._of_x(), [])
        if number == 1:
            return self._of_weight()
        return Inlined(self.builder.reduce(Op.SUM, self.gradient, (0, 2, 3)), [])

    def _of_x(self) -> Node:
        operation = ConvolutionBackward(self.how, (True, False, False))
        results = self.call.results[0], None, None
        call = StructuredCall(operation, self.call.operand_strides, results)
        of_x = self.builder.call(call, self.inputs)[0]
        assert of_x is not None
        return of_x

    def _of_weight(self) -> Inlined:
        """sum over p of x[p + line] @ gradient[p], for each line of a window"""
        builder, (features, channels, lines, columns) = self.builder, self.weight.shape
        elements, gradient = self.images
        line, across = known(columns) * known(channels), self._room[1]
        steps = self._positions - (known(lines) - 1) * across - known(columns) + 1
        flat = builder.reshape(elements, (self._positions * known(channels),))
        windows = builder.unfold(flat, 0, line, known(channels))
        right = builder.slice(gradient, (ALL, ALL), (steps, features))
        sums = []
        for number in range(known(lines)):
            part = builder.slice(windows, (Range(number * across), ALL), (steps, line))
            product = builder.dot(builder.permute(part, (1, 0)), right)
            sums.append(MatmulSum((product,), product))
        shape = 1, columns, channels, features
        by_lines = [builder.reshape(line_sum.total, shape) for line_sum in sums]
        return Inlined(builder.permute(builder.concat(by_lines, 0), (3, 2, 0, 1)), sums)

    @property
    def _room(self) -> tuple[int, int]:
        """Lines and columns of an image with its zeros."""
        height, width = (known(n) + 2 * p for n, p in zip(self.x.shape[2:], self.padding))
        return height, width

    @property
    def _positions(self) -> int:
        return known(self.x.shape[0]) * prod(self._room)

    def _flat(self, image: Node, before: tuple[int, int]) -> Node:
        """[positions, channels]"""
        laid = self.builder.permute(image, CHANNELS_LAST)
        around = with_zeros(self.builder, laid, before, self._room)
        return self.builder.reshape(around, (self._positions, around.shape[3]))
