"""Convolutions of images of few channels, as a first layer's of colours, as products of matrices.
Takes a library call with its operands, gives what it makes.

A line of a window is a row of so many elements that lie side by side, and its windows overlap
(`Op.UNFOLD`): no matrix of windows is ever in memory, which would be as many times as large as the
image as a window has places for each step. Each line of the window is a product, and they are added
up in registers (`kernel/totals.py`). The gradients stay with the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hemstitch.fusion.convolutions import (
    ALL,
    CHANNELS_FIRST,
    CHANNELS_LAST,
    Sum,
    operands_of,
)
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import known
from hemstitch.ir.graph import LibraryCall, Node, Op, Range
from hemstitch.ir.types import DType

TYPE = DType.F32  # half types would round each line's product
MOST_CHANNELS = 4
LEAST_FEATURES = 32  # of which there are whole strips
LEAST_COLUMNS = 8  # of results, which are a block's rows
LEAST_LINE = 8  # elements: a product's steps
MOST_LINES = 11


def few_channels_of(
    builder: Builder, call: LibraryCall, inputs: Sequence[Node]
) -> FewChannels | None:
    """None if it is none that is written out here."""
    found = operands_of(call, inputs)
    if found is None or "gradient" in found[1]:
        return None
    given, operands = found
    x, weight = operands["x"], operands["weight"]
    strides, padding = given["stride"], given["padding"]
    is_image = x.type.rank == len(CHANNELS_LAST) and x.type.dtype is TYPE
    if not is_image or given["dilation"] != (1, 1):
        return None
    assert isinstance(strides, tuple) and isinstance(padding, tuple)
    made = FewChannels(builder, x, weight, operands.get("bias"), strides, padding)
    features, channels, lines, _ = map(known, weight.shape)
    return (
        made
        if channels <= MOST_CHANNELS
        and features >= LEAST_FEATURES
        and 1 < lines <= MOST_LINES
        and made.line >= LEAST_LINE
        and made.size[1] >= LEAST_COLUMNS
        else None
    )


@dataclass(frozen=True, slots=True)
class FewChannels:
    """`x` [count, channels, height, width] and `weight` [features, channels, lines, columns] give
    [count, features, *size]. Zeros around `x`: `padding` on either side."""

    builder: Builder
    x: Node
    weight: Node
    bias: Node | None
    strides: tuple[int, int]
    padding: tuple[int, int]

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

    @property
    def fewer(self) -> int:
        return 0

    @property
    def spared_bytes(self) -> int:
        return 0

    def result(self, number: int) -> tuple[Node, list[Sum]]:
        """The value of the call's only result, and the products in it."""
        builder, (height, width) = self.builder, self.size
        count, features, lines = self.x.shape[0], self.weight.shape[0], known(self.weight.shape[2])
        channels, (down, right) = known(self.x.shape[1]), self.strides
        windows = builder.unfold(self._lines(), 2, self.line, right * channels)
        turned = builder.permute(self.weight, (2, 3, 1, 0))
        matrix = builder.reshape(turned, (lines * self.line, features))
        products = []
        for line in range(lines):
            shape = (count, height, width, self.line)
            every = builder.slice(windows, (ALL, Range(line, down), ALL, ALL), shape)
            left = builder.reshape(every, (known(count) * height * width, self.line))
            part = builder.slice(matrix, (Range(line * self.line), ALL), (self.line, features))
            products.append(builder.dot(left, part))
        total = products[0]
        for product in products[1:]:
            total = builder.make(Op.ADD, total, product)
        if self.bias is not None:
            total = builder.make(Op.ADD, total, builder.broadcast(self.bias, total.shape))
        images = builder.reshape(total, (count, height, width, features))
        return builder.permute(images, CHANNELS_FIRST), [Sum(tuple(products), total)]

    def stored(self, number: int, value: Node) -> list[Node]:
        """Reshapes of what had better be in memory: windows read its elements again and again."""
        return [self._lines()]

    def _lines(self) -> Node:
        """[count, lines, elements of a line]: zeros around, as far as windows reach."""
        builder, x = self.builder, self.x
        count, channels, *sizes = map(known, x.shape)
        room = [
            (results - 1) * stride + known(window)
            for results, stride, window in zip(self.size, self.strides, self.weight.shape[2:])
        ]
        inside = [min(n, most - pad) for n, most, pad in zip(sizes, room, self.padding)]
        seen = builder.permute(x, CHANNELS_LAST)
        seen = builder.slice(seen, (ALL,) * 4, (count, *inside, channels))
        zero = builder.constant(0, x.type.dtype)
        around = builder.pad(seen, (0, *self.padding, 0), (count, *room, channels), zero)
        return builder.reshape(around, (count, room[0], room[1] * channels))
