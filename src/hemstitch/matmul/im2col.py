"""Convolutions of images as one matmul of what their windows hold (im2col), on processors: those of
images of one channel, and those whose windows lie side by side, as patches of an image do (patch
embedding). Takes a call of the graph IR; gives a matmul of views.

A window of 3 x 3 of one channel is nine numbers: to lay all windows side by side writes less than
the results are. Patches are a view. The matmul is one of our kernels with all that follows, where
the library's call gives its results in another order, or takes several times what they take to be
written, and its gradient of the weights again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Convolution, ConvolutionBackward, Matmul, StructuredCall
from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import Node, Op, operation_of
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.rewrites.engine import rule

TYPES = (DType.F32, DType.F64)
RANK = 4  # of images
MAX_WINDOW = 16  # elements of a window of one channel
MIN_FEATURES = 16  # fewer are no more than the numbers of a window
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@rule(Op.RESULT)
def im2col(builder: Builder, node: Node) -> Node | None:
    """convolution(x, w, bias) -> windows(x) @ w.T + bias    of one channel, or of patches"""
    convolution = operation_of(node)
    if not isinstance(convolution, Convolution):
        return None
    image, weight, *addends = node.inputs[0].inputs
    windows = _windows(builder, convolution, image, weight, node.shape)
    if windows is None:
        return None
    matrix = builder.permute(builder.reshape(weight, _weight_matrix(weight)), (1, 0))
    result = _matmul(builder, [*addends, windows, matrix])
    count, features, *sizes = node.shape
    return builder.permute(builder.reshape(result, (count, *sizes, features)), CHANNELS_FIRST)


@rule(Op.RESULT)
def im2col_gradient(builder: Builder, node: Node) -> Node | None:
    """convolution_backward(g, x, w) -> g.T @ windows(x), sum(g)    where x has no gradient"""
    backward = operation_of(node)
    if not isinstance(backward, ConvolutionBackward) or backward.wanted[0]:
        return None
    gradient, image, weight = node.inputs[0].inputs
    windows = _windows(builder, backward.convolution, image, weight, gradient.shape)
    if windows is None:
        return None
    if node.attr == 2:
        return builder.reduce(Op.SUM, gradient, (0, 2, 3))
    rows = builder.reshape(
        builder.permute(gradient, CHANNELS_LAST), (windows.shape[0], weight.shape[0])
    )
    result = _matmul(builder, [builder.permute(rows, (1, 0)), windows])
    return builder.reshape(result, weight.shape)


def _windows(
    builder: Builder, convolution: Convolution, image: Node, weight: Node, result: Sequence[Dim]
) -> Node | None:
    """[windows, what each holds]; None where another algorithm is better."""
    sizes = (*image.shape, *weight.shape, *result)
    is_known = image.type.rank == RANK and all(isinstance(size, int) for size in sizes)
    if not is_known or 0 in result or image.type.dtype not in TYPES:
        return None
    is_usual = not convolution.transposed and convolution.groups == 1
    if not is_usual or {*convolution.dilation} != {1}:
        return None
    if _are_patches(convolution, image, weight, result):
        return _patches(builder, image, weight, result)
    return _of_one_channel(builder, convolution, image, weight, result)


def _are_patches(
    convolution: Convolution, image: Node, weight: Node, result: Sequence[Dim]
) -> bool:
    """Windows cover the image, and none meets another."""
    window = weight.shape[2:]
    covered = tuple(count * size for count, size in zip(result[2:], window))
    is_apart = convolution.stride == window and not any(convolution.padding)
    return is_apart and covered == image.shape[2:] and prod(map(known, window)) > 1


def _patches(builder: Builder, image: Node, weight: Node, result: Sequence[Dim]) -> Node:
    count, _, rows, columns = result
    _, channels, height, width = weight.shape
    apart = builder.reshape(image, (count, channels, rows, height, columns, width))
    together = builder.permute(apart, (0, 2, 4, 1, 3, 5))
    return builder.reshape(together, (count * rows * columns, channels * height * width))


def _of_one_channel(
    builder: Builder, convolution: Convolution, image: Node, weight: Node, result: Sequence[Dim]
) -> Node | None:
    features, channels, height, width = map(known, weight.shape)
    if channels != 1 or height * width > MAX_WINDOW or features < MIN_FEATURES:
        return None
    count, _, *sizes = image.shape
    above, before = convolution.padding
    padded = (count, sizes[0] + 2 * above, sizes[1] + 2 * before)
    zero = builder.constant(0, image.type.dtype)
    whole = builder.pad(builder.reshape(image, (count, *sizes)), (0, above, before), padded, zero)
    step, next_ = convolution.stride
    windows = builder.unfold(builder.unfold(whole, 1, height, step), 2, width, next_)
    return builder.reshape(windows, (count * result[2] * result[3], height * width))


def _weight_matrix(weight: Node) -> tuple[Dim, Dim]:
    features, *window = weight.shape
    return features, prod(map(known, window))


def _matmul(builder: Builder, operands: Sequence[Node]) -> Node:
    """Of (a, b), or (addend, a, b); transposed operands lie as what they are a view of."""
    *addend, left, right = operands
    type_ = TensorType((left.shape[0], right.shape[1]), left.type.dtype)
    strides = (*(contiguous_strides(x.shape) for x in addend), _strides(left), _strides(right))
    results = ((type_, contiguous_strides(type_.shape)),)
    call = StructuredCall(Matmul(has_addend=bool(addend)), strides, results)
    (result,) = builder.call(call, operands)
    assert result is not None
    return result


def _strides(matrix: Node) -> tuple[Dim, Dim]:
    rows, columns = matrix.shape
    return (1, rows) if matrix.op is Op.PERMUTE else (columns, 1)


IM2COL = (im2col, im2col_gradient)
