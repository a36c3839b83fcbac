"""A part of a tensor: some of the lines along an axis, also as reshapes show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Node, Range


@dataclass(frozen=True, slots=True)
class Region:
    """An axis has `outer` x `size` x `inner` elements, numbered in this order; those belong to it
    that are the first to the last of `length`, from `first` on, of `size`. An axis of its own has
    `outer` = `inner` = 1; a reshape may have made others part of it. All sizes are known."""

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

    def cut(self, builder: Builder, whole: Node, shape: Sequence[int]) -> Node:
        """The part of `whole`, which has this shape."""
        apart = self._apart(shape, self.size)
        sizes = [*apart]
        sizes[self.axis + 1] = self.length
        ranges = [Range(self.first if n == self.axis + 1 else 0) for n in range(len(apart))]
        part = builder.slice(builder.reshape(whole, apart), ranges, sizes)
        return builder.reshape(part, self.shape(shape))

    def among_zeros(self, builder: Builder, part: Node, shape: Sequence[int]) -> Node:
        """A tensor of `shape`: `part`, and zeros elsewhere."""
        apart = self._apart(shape, self.size)
        low = [self.first if n == self.axis + 1 else 0 for n in range(len(apart))]
        split = builder.reshape(part, self._apart(shape, self.length))
        zero = builder.constant(0, part.type.dtype)
        return builder.reshape(builder.pad(split, low, apart, zero), shape)

    def _apart(self, shape: Sequence[int], length: int) -> list[int]:
        return [*shape[: self.axis], self.outer, length, self.inner, *shape[self.axis + 1 :]]
