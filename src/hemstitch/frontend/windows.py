"""Convolutions of images of one channel are products of their windows, on processors.

A window of 3 x 3 is nine numbers: to lay all windows side by side writes less than the results are.
The product is one of our kernels with all that follows, where the library's call takes several
times what its results take to be written, and its gradient of the weights again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.frontend.fake import call_before
from hemstitch.frontend.joint import is_made_again, value_of

aten = torch.ops.aten

TYPES = (torch.float32, torch.float64)
MOST_PLACES = 16  # of a window
LEAST_CHANNELS = 16  # of results, fewer than which are no more than a window's numbers
BY_CHANNELS, BACK = [0, 2, 3, 1], [0, 3, 1, 2]
PLAIN = ([1, 1], False, [0, 0], 1)  # no dilation, transposition, output padding, groups


@dataclass(frozen=True, slots=True)
class _Convolution:
    """`node` is it, `again` what makes the gradients of its weight and bias, if anything does."""

    node: Node
    image: Node
    weight: Node
    bias: Node | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    again: Node | None


def as_products(graph: Graph) -> None:
    """Change `graph`, one of AOTAutograd's, whose images lie by channels where they ever will."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        found = _convolution(node)
        if found is not None:
            _rewrite(found)
            graph.eliminate_dead_code()


def _convolution(node: Node) -> _Convolution | None:
    image, weight, bias, stride, padding, *how = _arguments(node)
    is_small = _is_small(value_of(image), value_of(weight), value_of(node))
    if not is_small or tuple(how) != PLAIN or is_made_again(node):
        return None
    same = (image, weight, stride, padding, *how)
    again = [user for user in weight.users if _of_backward(user) == same]
    if len(again) > 1 or any(each.args[-1][0] for each in again):  # the image has a gradient
        return None
    return _Convolution(
        *(node, image, weight, bias, tuple(stride), tuple(padding)), again[0] if again else None
    )


def _is_small(image: Tensor, weight: Tensor, result: Tensor) -> bool:
    sizes = (*image.shape, *weight.shape, *result.shape)
    if image.dim() != len(BACK) or not all(isinstance(size, int) for size in sizes):
        return False
    channels, *window = weight.shape
    is_here = image.device.type == "cpu" and image.dtype in TYPES and result.numel() > 0
    is_thin = image.shape[1] == 1 and prod(window) <= MOST_PLACES and channels >= LEAST_CHANNELS
    return is_here and is_thin


def _of_backward(node: Node) -> tuple[Any, ...] | None:
    """The arguments that it has in common with its convolution."""
    if node.target is not aten.convolution_backward.default:
        return None
    _, image, weight, _, *how, _ = _arguments(node)
    return (image, weight, *how)


def _rewrite(found: _Convolution) -> None:
    at, before = found.node, value_of(found.node)
    texts, channels, *sizes = before.shape
    windows = _windows(found)
    matrix = call_before(at, aten.reshape.default, found.weight, [channels, -1])
    turned = call_before(at, aten.t.default, matrix)
    if found.bias is None:
        results = call_before(at, aten.mm.default, windows, turned)
    else:
        results = call_before(at, aten.addmm.default, found.bias, windows, turned)
    image = call_before(at, aten.reshape.default, results, [texts, *sizes, channels])
    new = call_before(at, aten.permute.default, image, BACK)
    if value_of(new).stride() != before.stride():
        new = call_before(at, aten.clone.default, new, memory_format=torch.contiguous_format)
    at.replace_all_uses_with(new)
    if found.again is not None:
        _rewrite_gradients(found, found.again, windows)


def _rewrite_gradients(found: _Convolution, at: Node, windows: Node) -> None:
    given, weight = _arguments(at)[0], value_of(found.weight)
    lines = call_before(at, aten.permute.default, given, BY_CHANNELS)
    matrix = call_before(at, aten.reshape.default, lines, [-1, weight.shape[0]])
    turned = call_before(at, aten.t.default, matrix)
    for user in [*at.users]:
        if user.args[1] == 1:
            product_ = call_before(at, aten.mm.default, turned, windows)
            new = call_before(at, aten.reshape.default, product_, [*weight.shape])
        else:
            new = call_before(at, aten.sum.dim_IntList, given, [0, 2, 3])
        user.replace_all_uses_with(new)


def _windows(found: _Convolution) -> Node:
    """[windows, places]"""
    at, (rows, columns) = found.node, found.padding
    first = call_before(at, aten.select.int, found.image, 1, 0)
    padded = call_before(at, aten.constant_pad_nd.default, first, [columns, columns, rows, rows])
    parts = [call_before(at, aten.unsqueeze.default, each, -1) for each in _places(found, padded)]
    side_by_side = call_before(at, aten.cat.default, parts, -1)
    return call_before(at, aten.reshape.default, side_by_side, [-1, len(parts)])


def _places(found: _Convolution, padded: Node) -> Iterator[Node]:
    """For each place in a window, what all windows have there."""
    at, sizes = found.node, value_of(found.node).shape[2:]
    for place in product(*map(range, value_of(found.weight).shape[2:])):
        part = padded
        for axis, (start, step, size) in enumerate(zip(place, found.stride, sizes, strict=True), 1):
            end = start + step * (size - 1) + 1
            part = call_before(at, aten.slice.Tensor, part, axis, start, end, step)
        yield part


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args
