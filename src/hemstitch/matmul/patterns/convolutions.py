"""Convolutions along one axis, and those of images whose window is one element, as products of
matrices. Takes a library call with its operands, gives what each of its results is.

A window of so many steps is as many products with shifted rows of the input, added up; a matrix of
windows is never in memory. Rows are positions and columns are channels, so the channels of the
input must lie side by side, as the features of words do: the library wants them the other way
round, and copies it first. Larger windows of images would be as many products as they have cells.
Strides of images leave rows and columns out, whose gradient is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call, Convolution, ConvolutionBackward, StructuredCall
from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.types import DType
from hemstitch.matmul.patterns.image_tiles import ALL, CHANNELS_FIRST, CHANNELS_LAST
from hemstitch.matmul.patterns.inlined import Inlined, MatmulSum

MOST_STEPS = 16  # of a window
ROWS_LAST = (0, 2, 1)  # [batch, channels, rows] seen as [batch, rows, channels], or back


@dataclass(frozen=True, slots=True)
class Images:
    """So many, of `size`: one element for each so many-th (`strides`) of rows and of columns, from
    the first on, of images whose size is `of`."""

    count: int
    size: tuple[int, int]
    strides: tuple[int, int]
    of: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ConvolutionAsMatmuls:
    """`x` [batch, length, channels] and `weight` [features, channels, steps] give, or have for
    their `gradient`, [batch, positions, features]. Zeros around `x`: `padding` on either side.
    `images`: what it gives, where all positions of all of them are one axis here."""

    builder: Builder
    x: Node
    weight: Node
    bias: Node | None
    gradient: Node | None
    stride: int
    padding: int
    positions: int
    images: Images | None = None

    @property
    def steps(self) -> int:
        return known(self.weight.shape[2])

    @property
    def spared_bytes(self) -> Dim:
        """What the library lays out anew, or reads and writes to do so: the input, in backward its
        gradient too; no images."""
        if self.images is not None:
            return 0
        return self.x.type.bytes * (2 if self.gradient is None else 4)

    def constant_operand(self) -> None:
        """Kernels pack the weights themselves."""

    def result(self, number: int) -> Inlined:
        """The call's result with this number."""
        value, sums = self._result(number)
        return Inlined(value, sums, spared_by_call=self.spared_bytes)

    def _result(self, number: int) -> tuple[Node, Sequence[MatmulSum]]:
        if self.gradient is None:
            rows, sums = self._output()
            return self._channels_first(rows), sums
        if number == 0:
            rows, sums = self._of_x(self.gradient)
            return self._channels_first(rows, spread=True), sums
        value, sums = (self._of_weight, self._of_bias)[number - 1](self.gradient)
        is_window = number == 1 and self.images is not None
        value = self.builder.reshape(value, (*value.shape, 1)) if is_window else value
        return value, sums

    def _channels_first(self, rows: Node, *, spread: bool = False) -> Node:
        """Of [batch, positions, channels]. `spread`: to where x has them, with zeros between."""
        if self.images is None:
            return self.builder.permute(rows, ROWS_LAST)
        shape = self.images.count, *self.images.size, rows.shape[2]
        images = self.builder.reshape(rows, shape)
        if spread and self.images.size != self.images.of:
            images = self._spread(images, self.images)
        return self.builder.permute(images, CHANNELS_FIRST)

    def _spread(self, rows: Node, images: Images) -> Node:
        builder, channels = self.builder, rows.shape[3]
        zero = builder.constant(0, rows.type.dtype)
        count, (height, width), (down, right) = images.count, images.size, images.strides
        apart = builder.reshape(rows, (count, height, 1, width, 1, channels))
        filled = builder.pad(apart, (0,) * 6, (count, height, down, width, right, channels), zero)
        whole = builder.reshape(filled, (count, height * down, width * right, channels))
        return builder.slice(whole, (ALL,) * 4, (count, *images.of, channels))

    def _output(self) -> tuple[Node, list[MatmulSum]]:
        """sum over t of x[l * stride + t] @ weight[t]"""
        builder, x = self.builder, self._padded(known(self.x.shape[1]) + self.padding)
        factors = [
            (self._rows(x, t, self.stride, self.positions), self._step(t, (1, 0)))
            for t in range(self.steps)
        ]
        matmul_sum = self._added(factors, self.bias)
        batch, features = self.x.shape[0], self.weight.shape[0]
        return builder.reshape(matmul_sum.total, (batch, self.positions, features)), [matmul_sum]

    def _of_x(self, gradient: Node) -> tuple[Node, list[MatmulSum]]:
        """Rows m * stride + q of x were read in the steps t = j * stride + q of windows m - j."""
        builder, x, (batch, length, channels) = self.builder, self.x, self.x.shape
        last, most = ceil(self.steps / self.stride) - 1, known(length) + 2 * self.padding
        windows = max(self.positions, ceil(most / self.stride))
        padded = self._zeros_around(gradient, last, last + windows)
        sums: list[MatmulSum] = []
        phases: list[Node] = []
        for phase in range(self.stride):
            steps = range(phase, self.steps, self.stride)
            factors = [
                (self._rows(padded, last - j, 1, windows), self._step(t, (0, 1)))
                for j, t in enumerate(steps)
            ]
            one = batch, windows, 1, channels
            if factors:
                sums.append(self._added(factors))
                phases.append(builder.reshape(sums[-1].total, one))
            else:
                phases.append(builder.constant(0, x.type.dtype, one))
        all_rows = batch, windows * self.stride, channels
        rows = builder.reshape(builder.concat(phases, 2), all_rows)
        return builder.slice(rows, (ALL, Range(self.padding), ALL), self.x.shape), sums

    def _of_weight(self, gradient: Node) -> tuple[Node, list[MatmulSum]]:
        """sum over l of gradient[l] @ x[l * stride + t], for `stride` steps t at once, whose rows
        of x lie one behind the other."""
        builder, (batch, _, channels) = self.builder, self.x.shape
        features, groups = self.weight.shape[0], ceil(self.steps / self.stride)
        windows = self.positions + groups - 1
        x = self._padded(windows * self.stride - self.padding)
        wide = builder.reshape(x, (batch, windows, self.stride * channels))
        left = builder.permute(gradient, ROWS_LAST)
        shape = batch, self.positions, wide.shape[2]
        parts = [builder.slice(wide, (ALL, Range(j), ALL), shape) for j in range(groups)]
        sums = [MatmulSum((product,), product) for product in (builder.dot(left, p) for p in parts)]
        whole = [
            self._rounded(builder.reduce(Op.SUM, matmul_sum.total, (0,))) for matmul_sum in sums
        ]
        split = [builder.reshape(w, (features, 1, self.stride, channels)) for w in whole]
        steps = builder.permute(builder.concat(split, 1), (0, 3, 1, 2))
        steps = builder.reshape(steps, (features, channels, groups * self.stride))
        return builder.slice(steps, (ALL, ALL, ALL), self.weight.shape), sums

    def _of_bias(self, gradient: Node) -> tuple[Node, list[MatmulSum]]:
        wide = self.builder.cast(gradient, gradient.type.dtype.compute)
        return self._rounded(self.builder.reduce(Op.SUM, wide, (0, 1))), []

    def _added(self, factors: Sequence[tuple[Node, Node]], bias: Node | None = None) -> MatmulSum:
        products = tuple(self.builder.dot(left, right) for left, right in factors)
        total = products[0]
        for product in products[1:]:
            total = self.builder.make(Op.ADD, total, product)
        if bias is not None:
            wide = self.builder.cast(bias, total.type.dtype)
            total = self.builder.make(Op.ADD, total, self.builder.broadcast(wide, total.shape))
        return MatmulSum(products, self._rounded(total))

    def _rounded(self, x: Node) -> Node:
        return self.builder.cast(x, self.x.type.dtype)

    def _step(self, step: int, order: tuple[int, int]) -> Node:
        """Of the weight, [features, channels] in this order."""
        shape = self.weight.shape[:2]
        part = self.builder.slice(self.weight, (ALL, ALL, Range(step)), (*shape, 1))
        return self.builder.permute(self.builder.reshape(part, shape), order)

    def _rows(self, x: Node, start: int, stride: int, count: int) -> Node:
        """[batch * count, channels]"""
        batch, _, channels = x.shape
        ranges = ALL, Range(start, stride), ALL
        part = self.builder.slice(x, ranges, (batch, count, channels))
        return self.builder.reshape(part, (batch * count, channels))

    def _padded(self, end: int) -> Node:
        """x with the zeros before it, to this row of it: with zeros behind, or cut off."""
        batch, length, channels = self.x.shape
        shape = batch, min(known(length), end), channels
        return self._zeros_around(
            self.builder.slice(self.x, (ALL, ALL, ALL), shape), self.padding, self.padding + end
        )

    def _zeros_around(self, x: Node, low: int, length: int) -> Node:
        fill = self.builder.constant(0, x.type.dtype)
        return self.builder.pad(x, (0, low, 0), (x.shape[0], length, x.shape[2]), fill)


@dataclass(frozen=True, slots=True)
class PlainConvolution:
    """A convolution, or of one with a `gradient` its backward pass, that may be written with
    matmuls: one group, not transposed, of known sizes, with `x` channels-last. `weight_sums`: what
    frozen weights alone decide, where the call has it."""

    how: Convolution
    x: Node
    weight: Node
    bias: Node | None = None
    gradient: Node | None = None
    weight_sums: Node | None = None
    wanted: tuple[bool, bool, bool] = (False, False, False)


def convolution_of(
    builder: Builder, call: Call, inputs: Sequence[Node]
) -> ConvolutionAsMatmuls | None:
    """What the call convolves; None if it is none that is written out here."""
    plain = plain_convolution(call, inputs)
    if plain is None:
        return None
    x, weight, how = plain.x, plain.weight, plain.how
    if x.type.rank == 4:
        return _of_images(builder, plain)
    if how.dilation != (1,) or known(weight.shape[2]) > MOST_STEPS:
        return None
    (stride,), (padding,) = how.stride, how.padding
    return ConvolutionAsMatmuls(
        builder,
        builder.permute(x, ROWS_LAST),
        weight,
        plain.bias,
        None if plain.gradient is None else builder.permute(plain.gradient, ROWS_LAST),
        stride,
        padding,
        (known(x.shape[2]) + 2 * padding - known(weight.shape[2])) // stride + 1,
    )


def plain_convolution(call: Call, inputs: Sequence[Node]) -> PlainConvolution | None:
    """None for any other call."""
    match call:
        case StructuredCall(operation=Convolution() as how):
            x, weight, *others = inputs
            bias = others.pop(0) if how.has_bias else None
            sums = others.pop(0) if how.has_weight_sums else None
            convolution = PlainConvolution(how, x, weight, bias, None, sums)
        case StructuredCall(operation=ConvolutionBackward(how, wanted)):
            gradient, x, weight = inputs
            convolution = PlainConvolution(how, x, weight, None, gradient, None, wanted)
        case _:
            return None
    is_plain = not how.transposed and how.groups == 1 and all(map(_is_known, inputs))
    strides = call.operand_strides[inputs.index(x)]
    return convolution if is_plain and strides is not None and strides[1] == 1 else None


def _of_images(builder: Builder, plain: PlainConvolution) -> ConvolutionAsMatmuls | None:
    """Each element of each image is a row, and a window, but for those that a stride leaves out."""
    x, weight, gradient, how = plain.x, plain.weight, plain.gradient, plain.how
    if (weight.shape[2:], how.padding, how.dilation) != ((1, 1), (0, 0), (1, 1)):
        return None
    strides = how.stride[0], how.stride[1]
    count, _, *of = map(known, x.shape)
    height, width = (-(-size // stride) for size, stride in zip(of, strides))

    def rows(images: Node) -> Node:
        """Of all images, or of what a stride leaves."""
        channels_last, channels = builder.permute(images, CHANNELS_LAST), images.shape[1]
        if channels_last.shape[1:3] != (height, width):
            ranges = ALL, *(Range(0, stride) for stride in strides), ALL
            channels_last = builder.slice(channels_last, ranges, (count, height, width, channels))
        return builder.reshape(channels_last, (1, count * height * width, channels))

    return ConvolutionAsMatmuls(
        *(builder, rows(x), builder.reshape(weight, (*weight.shape[:2], 1))),
        plain.bias,
        None if gradient is None else rows(gradient),
        *(1, 0, count * height * width),
        Images(count, (height, width), strides, (of[0], of[1])),
    )


def _is_known(operand: Node) -> bool:
    """A tensor of numbers, not empty, whose sizes are known."""
    sizes = operand.shape
    return operand.type.dtype is not DType.OPAQUE and all(isinstance(n, int) and n for n in sizes)
