"""A part of a tensor: some of the lines along an axis, also as views show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch.fx import Node

from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.traced_nodes import value_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Region:
    """An axis has `outer` x `size` x `inner` elements, numbered in this order; those belong to it
    that are the first to the last of `length`, from `first` on, of `size`. An axis of its own has
    `outer` = `inner` = 1; a view may have made others part of it."""

    axis: int
    size: int
    first: int
    length: int
    outer: int = 1
    inner: int = 1

    def along(self, axis: int) -> Region:
        return replace(self, axis=axis)

    def shape(self, whole: Sequence[int]) -> list[int]:
        """Of the part of a tensor with the shape `whole`."""
        sizes = [*whole]
        sizes[self.axis] = self.outer * self.length * self.inner
        return sizes

    def viewed(self, shape: Sequence[int], other: Sequence[int]) -> Region | None:
        """The same part of a tensor of `shape` once that has the shape `other`; None if its
        elements do not lie along one axis then."""
        if 0 in shape:
            return None
        step = self.inner * prod(shape[self.axis + 1 :])
        for axis, extent in enumerate(other):
            below = prod(other[axis + 1 :])
            if step % below == 0 and (below * extent) % (self.size * step) == 0:
                outer = below * extent // (self.size * step)
                return replace(self, axis=axis, outer=outer, inner=step // below)
        return None

    def cut(self, at: Node, whole: Node) -> Node:
        """The part of `whole`, made before the node `at`."""
        shape, end = value_of(whole).shape, self.first + self.length
        if self.outer == self.inner == 1:
            return call_before(at, aten.slice.Tensor, whole, self.axis, self.first, end)
        apart = call_before(at, aten.reshape.default, whole, self._apart(shape, self.size))
        part = call_before(at, aten.slice.Tensor, apart, self.axis + 1, self.first, end)
        return call_before(at, aten.reshape.default, part, self.shape(shape))

    def among_zeros(self, at: Node, part: Node, shape: Sequence[int]) -> Node:
        """A tensor of `shape`: `part`, and zeros elsewhere."""
        apart = self._apart(shape, self.length)
        behind = len(apart) - (self.axis + 2)
        zeros = [0, 0] * behind + [self.first, self.size - self.first - self.length]
        split = call_before(at, aten.reshape.default, part, apart)
        padded = call_before(at, aten.constant_pad_nd.default, split, zeros, 0)
        return call_before(at, aten.reshape.default, padded, [*shape])

    def _apart(self, shape: Sequence[int], length: int) -> list[int]:
        return [*shape[: self.axis], self.outer, length, self.inner, *shape[self.axis + 1 :]]
