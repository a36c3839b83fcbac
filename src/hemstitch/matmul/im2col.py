"""Convolutions of images as one matmul of what their windows hold (im2col), on processors: those of
images of one channel, and those whose windows lie side by side, as patches of an image do (patch
embedding). Takes a call of the graph IR; gives a matmul of views.

A window of 3 x 3 of one channel is nine numbers: to lay all windows side by side writes less than
the results are. Patches are a view. The matmul is one of our kernels with all that follows, where
the library's call gives its results in another order, or takes several times what they take to be
written, and its gradient of the weights again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Convolution, ConvolutionBackward, Matmul, StructuredCall
from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import Graph, Node, Op, Range, operation_of, toposort
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.rewrites.engine import Rule, replacements, rewrite, rule

Shape = Sequence[Dim]
TYPES = (DType.F32, DType.F64)
RANK = 4  # of images
MAX_WINDOW = 16  # elements of a window of one channel
MIN_FEATURES = 16  # fewer are no more than the numbers of a window
CONVOLVING = (Op.CONVOLUTION, Op.CONVOLUTION_BACKWARD)
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def lower_to_im2col(graph: Graph, builder: Builder) -> Graph:
    """`graph`, of inference, with such convolutions as matmuls."""
    return rewrite(graph, im2col_rules(graph), builder)


def im2col_values(graph: Graph, builder: Builder) -> Mapping[Node, Node]:
    """What takes the place of each value of a graph of forward and backward."""
    return replacements(graph, im2col_rules(graph), builder)


def im2col_rules(graph: Graph) -> tuple[Rule, Rule]:
    """Of a graph of inference, or of forward and backward: where the gradient of an image is asked
    for, which the library computes, all is the library's."""
    nodes = toposort(graph.roots)
    of_library = {
        node.inputs[1:]
        for node in nodes
        for operation in (operation_of(node),)
        if isinstance(operation, ConvolutionBackward) and operation.wanted[0]
    }
    # Calls stay what they are when their operands change.
    library_calls = {
        node.attr for node in nodes if node.op in CONVOLVING and _images(node) in of_library
    }

    def is_better(result: Node, convolution: Convolution, shape: Shape) -> bool:
        image, weight = _images(result.inputs[0])
        if result.inputs[0].attr in library_calls:
            return False
        return _is_better(convolution, image.type, weight.type, shape)

    @rule(Op.RESULT)
    def im2col(builder: Builder, node: Node) -> Node | None:
        """convolution(x, w, bias) -> windows(x) @ w.T + bias"""
        convolution = operation_of(node)
        if not isinstance(convolution, Convolution):
            return None
        if not is_better(node, convolution, node.shape):
            return None
        image, weight, *addend = node.inputs[0].inputs
        windows = _windows(builder, convolution, image, weight, node.shape)
        features, *window = weight.shape
        matrix = builder.reshape(weight, (features, prod(map(known, window))))
        result = _matmul(builder, [*addend, windows, builder.permute(matrix, (1, 0))])
        count, _, *sizes = node.shape
        return builder.permute(builder.reshape(result, (count, *sizes, features)), CHANNELS_FIRST)

    @rule(Op.RESULT)
    def im2col_gradient(builder: Builder, node: Node) -> Node | None:
        """convolution_backward(g, x, w) -> g.T @ windows(x), sum(g)    where x has no gradient"""
        operation = operation_of(node)
        if not isinstance(operation, ConvolutionBackward):
            return None
        gradient, image, weight = node.inputs[0].inputs
        if not is_better(node, operation.convolution, gradient.shape):
            return None
        if node.attr == 2:
            return builder.reduce(Op.SUM, gradient, (0, 2, 3))
        windows = _windows(builder, operation.convolution, image, weight, gradient.shape)
        rows = builder.permute(gradient, CHANNELS_LAST)
        matrix = builder.reshape(rows, (windows.shape[0], weight.shape[0]))
        result = _matmul(builder, [builder.permute(matrix, (1, 0)), windows])
        return builder.reshape(result, weight.shape)

    return im2col, im2col_gradient


def _images(call: Node) -> tuple[Node, ...]:
    """The image and the weight that it reads."""
    return call.inputs[:2] if call.op is Op.CONVOLUTION else call.inputs[1:3]


def _is_better(
    convolution: Convolution, image: TensorType, weight: TensorType, result: Shape
) -> bool:
    """`result`: its shape."""
    sizes = (*image.shape, *weight.shape, *result)
    is_known = image.rank == RANK and all(isinstance(size, int) for size in sizes)
    if not is_known or 0 in result or image.dtype not in TYPES:
        return False
    is_usual = not convolution.transposed and convolution.groups == 1
    if not is_usual or {*convolution.dilation} != {1}:
        return False
    return _is_thin(weight) or _are_patches(convolution, image, weight, result)


def _is_thin(weight: TensorType) -> bool:
    """Of one channel."""
    features, channels, *window = map(known, weight.shape)
    return channels == 1 and prod(window) <= MAX_WINDOW and features >= MIN_FEATURES


def _are_patches(
    convolution: Convolution, image: TensorType, weight: TensorType, result: Shape
) -> bool:
    """Windows cover the image, and none meets another."""
    window = weight.shape[2:]
    covered = tuple(count * size for count, size in zip(result[2:], window))
    is_apart = convolution.stride == window and not any(convolution.padding)
    return is_apart and covered == image.shape[2:] and prod(map(known, window)) > 1


def _windows(
    builder: Builder, convolution: Convolution, image: Node, weight: Node, result: Shape
) -> Node:
    """[windows, what each holds]"""
    if _are_patches(convolution, image.type, weight.type, result):
        return _patches(builder, image, weight, result)
    return _of_one_channel(builder, convolution, image, weight, result)


def _patches(builder: Builder, image: Node, weight: Node, result: Shape) -> Node:
    count, _, rows, columns = result
    _, channels, height, width = weight.shape
    apart = builder.reshape(image, (count, channels, rows, height, columns, width))
    together = builder.permute(apart, (0, 2, 4, 1, 3, 5))
    return builder.reshape(together, (count * rows * columns, channels * height * width))


def _of_one_channel(
    builder: Builder, convolution: Convolution, image: Node, weight: Node, result: Shape
) -> Node:
    """For each place in a window, what all windows have there."""
    window = [*map(known, weight.shape[2:])]
    count, _, *sizes = image.shape
    above, before = convolution.padding
    padded = (count, sizes[0] + 2 * above, sizes[1] + 2 * before)
    zero = builder.constant(0, image.type.dtype)
    whole = builder.pad(builder.reshape(image, (count, *sizes)), (0, above, before), padded, zero)
    shape = (count, *result[2:])
    parts = [
        builder.slice(whole, [Range(0), *map(Range, place, convolution.stride)], shape)
        for place in product(*map(range, window))
    ]
    columns = [builder.reshape(part, (*shape, 1)) for part in parts]
    rows = prod(map(known, shape))
    return builder.reshape(builder.concat(columns, len(shape)), (rows, len(parts)))


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
