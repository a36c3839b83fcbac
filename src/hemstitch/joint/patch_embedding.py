"""Convolutions that are products of what their windows hold, on processors: those of images of one
channel, and those whose windows lie side by side, as patches of an image do.

A window of 3 x 3 of one channel is nine numbers: to lay all windows side by side writes less than
the results are. Patches are a view. The product is one of our kernels with all that follows, where
the library's call gives its results in another order, or takes several times what they take to be
written, and its gradient of the weights again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.capture.effects import drop_unread
from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.traced_nodes import arguments_of, gradients_of, is_recomputed, value_of

aten = torch.ops.aten

TYPES = (torch.float32, torch.float64)
MOST_PLACES = 16  # of a window
LEAST_CHANNELS = 16  # of results, fewer than which are no more than a window's numbers
BY_CHANNELS, BACK = [0, 2, 3, 1], [0, 3, 1, 2]
PLAIN = ([1, 1], False, [0, 0], 1)  # no dilation, transposition, output padding, groups


@dataclass(frozen=True, slots=True)
class _PatchConvolution:
    """`node` is it, `again` what makes the gradients of its weight and bias, if anything does."""

    node: Node
    image: Node
    weight: Node
    bias: Node | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    again: Node | None


def multiply_patches(graph: Graph) -> None:
    """Change `graph`, one of AOTAutograd's, whose images lie by channels where they ever will."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        convolution = _convolution(node)
        if convolution is not None:
            _rewrite(convolution)
            drop_unread(graph)


def _convolution(node: Node) -> _PatchConvolution | None:
    image, weight, bias, stride, padding, *how = arguments_of(node)
    is_known = _is_known(value_of(image), value_of(weight), value_of(node))
    if not is_known or tuple(how) != PLAIN or is_recomputed(node):
        return None
    again = gradients_of(node)
    if len(again) > 1 or any(_of_image(backward) for backward in again):
        return None
    convolution = _PatchConvolution(
        *(node, image, weight, bias, tuple(stride), tuple(padding)), again[0] if again else None
    )
    return convolution if _is_thin(value_of(weight)) or _are_patches(convolution) else None


def _of_image(gradients: Node) -> bool:
    """Whether the image's is asked for."""
    *_, (asked, *_) = arguments_of(gradients)
    return bool(asked)


def _is_known(image: Tensor, weight: Tensor, result: Tensor) -> bool:
    sizes = (*image.shape, *weight.shape, *result.shape)
    is_here = image.device.type == "cpu" and image.dtype in TYPES
    is_static = image.dim() == len(BACK) and all(isinstance(size, int) for size in sizes)
    return is_here and is_static and result.numel() > 0


def _is_thin(weight: Tensor) -> bool:
    channels, in_channels, *window = weight.shape
    return in_channels == 1 and prod(window) <= MOST_PLACES and channels >= LEAST_CHANNELS


def _are_patches(convolution: _PatchConvolution) -> bool:
    """Windows cover the image, and none meets another."""
    window = tuple(value_of(convolution.weight).shape[2:])
    cover = (n * size for n, size in zip(value_of(convolution.node).shape[2:], window, strict=True))
    is_whole = tuple(cover) == tuple(value_of(convolution.image).shape[2:])
    return (
        convolution.stride == window
        and convolution.padding == (0, 0)
        and is_whole
        and prod(window) > 1
    )


def _rewrite(convolution: _PatchConvolution) -> None:
    at, before = convolution.node, value_of(convolution.node)
    images, channels, *sizes = before.shape
    windows = _patches(convolution) if _are_patches(convolution) else _windows(convolution)
    matrix = call_before(at, aten.reshape.default, convolution.weight, [channels, -1])
    turned = call_before(at, aten.t.default, matrix)
    if convolution.bias is None:
        results = call_before(at, aten.mm.default, windows, turned)
    else:
        results = call_before(at, aten.addmm.default, convolution.bias, windows, turned)
    image = call_before(at, aten.reshape.default, results, [images, *sizes, channels])
    new = call_before(at, aten.permute.default, image, BACK)
    if value_of(new).stride() != before.stride():
        new = call_before(at, aten.clone.default, new, memory_format=torch.contiguous_format)
    at.replace_all_uses_with(new)
    if convolution.again is not None:
        _rewrite_gradients(convolution, convolution.again, windows)


def _rewrite_gradients(convolution: _PatchConvolution, at: Node, windows: Node) -> None:
    gradient, weight = arguments_of(at)[0], value_of(convolution.weight)
    lines = call_before(at, aten.permute.default, gradient, BY_CHANNELS)
    matrix = call_before(at, aten.reshape.default, lines, [-1, weight.shape[0]])
    turned = call_before(at, aten.t.default, matrix)
    for user in [*at.users]:
        if user.args[1] == 1:
            product_ = call_before(at, aten.mm.default, turned, windows)
            new = call_before(at, aten.reshape.default, product_, [*weight.shape])
        else:
            new = call_before(at, aten.sum.dim_IntList, gradient, [0, 2, 3])
        user.replace_all_uses_with(new)


def _windows(convolution: _PatchConvolution) -> Node:
    """[windows, what each holds]"""
    at, (rows, columns) = convolution.node, convolution.padding
    first = call_before(at, aten.select.int, convolution.image, 1, 0)
    padded = call_before(at, aten.constant_pad_nd.default, first, [columns, columns, rows, rows])
    parts = [
        call_before(at, aten.unsqueeze.default, elements, -1)
        for elements in _places(convolution, padded)
    ]
    side_by_side = call_before(at, aten.cat.default, parts, -1)
    return call_before(at, aten.reshape.default, side_by_side, [-1, len(parts)])


def _patches(convolution: _PatchConvolution) -> Node:
    """The same, of a convolution whose windows lie side by side."""
    at, (images, _, *counts) = convolution.node, value_of(convolution.node).shape
    _, channels, *window = value_of(convolution.weight).shape
    shape = [images, channels, counts[0], window[0], counts[1], window[1]]
    is_copy = convolution.image.target is aten.clone.default  # by channels, for the library
    image = arguments_of(convolution.image)[0] if is_copy else convolution.image
    seen = call_before(at, aten.reshape.default, image, shape)
    turned = call_before(at, aten.permute.default, seen, [0, 2, 4, 1, 3, 5])
    return call_before(at, aten.reshape.default, turned, [images * prod(counts), -1])


def _places(convolution: _PatchConvolution, padded: Node) -> Iterator[Node]:
    """For each place in a window, what all windows have there."""
    at, sizes = convolution.node, value_of(convolution.node).shape[2:]
    for place in product(*map(range, value_of(convolution.weight).shape[2:])):
        part = padded
        for axis, (start, step, size) in enumerate(
            zip(place, convolution.stride, sizes, strict=True), 1
        ):
            end = start + step * (size - 1) + 1
            part = call_before(at, aten.slice.Tensor, part, axis, start, end, step)
        yield part
