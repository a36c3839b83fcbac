"""The lane loop that is being printed: which elements its copies and their lanes stand for."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.codegen.llvm.emitter import Emitter, Value
from hemstitch.ir.dims import divides
from hemstitch.ir.types import DType
from hemstitch.kernel.index import Axis, Computed, Index
from hemstitch.kernel.placement import LINE

LEAST_STREAM = 16  # bytes


@dataclass(frozen=True, slots=True)
class Crossed:
    """The loop around, where the two are printed together: its index in each copy; `count`: the
    lanes in use, the first ones."""

    axis: Axis
    indices: tuple[Value, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """Its axis, the first lane of each copy (one for all, where loops are crossed), the lanes in
    use; `is_single`: that is known to be one."""

    axis: Axis
    firsts: tuple[Value, ...]
    mask: Value | None
    is_single: bool
    crossed: Crossed | None = None

    def index_of(self, axis: Axis, copy: int) -> Value | None:
        """Of the copy's first lane, where that is the copies' own affair."""
        if axis is self.axis:
            return self.firsts[copy]
        crossed = self.crossed
        return crossed.indices[copy] if crossed is not None and crossed.axis is axis else None

    def begins_at_multiples(self, of: int, index: Index) -> bool:
        """The lanes walk one by one, and the first of them all is a multiple wherever the loops
        around are."""
        for variable, coefficient in index.terms:
            if variable is self.axis:
                if coefficient != 1:
                    return False
            elif isinstance(variable, Computed) or not divides(of, coefficient):
                return False
        return index.coefficient(self.axis) == 1 and divides(of, index.constant)


def lanes_left(e: Emitter, first: Value, extent: Value) -> tuple[Value, bool]:
    """Those of a vector that begins at `first`, and whether that is known to be one."""
    if first.text.isdigit() and extent.text.isdigit():
        left = int(extent.text) - int(first.text)
        return e.mask(lane < left for lane in range(e.width)), left == 1
    left_of_all = e.splat(e.binary("sub", extent, first))
    return e.compare("slt", e.lane_numbers(), left_of_all), False


def draws_by_four(lanes: Lanes | None, index: Index) -> bool:
    """Whether one Philox makes the random numbers of four vectors (philox.words4)."""
    if lanes is None or len(lanes.firsts) % 4:
        return False
    return lanes.begins_at_multiples(4, index)


def fills_lines(lanes: Lanes | None, width: int, dtype: DType, index: Index) -> bool:
    """Whether whole vectors are stored one after the other from the start of a cache's line, each
    of as many bytes as one instruction can store past the caches."""
    if lanes is None or lanes.mask is not None or width * dtype.bytes < LEAST_STREAM:
        return False
    return lanes.begins_at_multiples(LINE // dtype.bytes, index)
