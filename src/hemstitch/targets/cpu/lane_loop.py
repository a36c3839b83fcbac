"""The lane loop that is being printed: which elements its copies and their lanes stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hemstitch.ir.dims import divides
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Computed, Index
from hemstitch.kernel_ir.nodes import Buffer, Constant, Let, Load, Position, Stmt, Store
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu.emitter import Emitter, Value


@dataclass(frozen=True, slots=True)
class TransposedLoop:
    """The loop around, where the two are printed together: its index in each copy; `count`: the
    lanes in use, the first ones."""

    axis: Axis
    indices: tuple[Value, ...]
    count: int


@dataclass(frozen=True, slots=True)
class LaneLoop:
    """Its axis, the first lane of each copy (one for all, where loops are crossed), the lanes in
    use; `is_single`: that is known to be one; `peeled`: the store that whole vectors fill lines
    with, of a loop that does not begin at its first element."""

    axis: Axis
    firsts: tuple[Value, ...]
    mask: Value | None
    is_single: bool
    transposed: TransposedLoop | None = None
    peeled: Store | None = None

    def index_of(self, axis: Axis, copy: int) -> Value | None:
        """Of the copy's first lane, where that is the copies' own affair."""
        if axis is self.axis:
            return self.firsts[copy]
        transposed = self.transposed
        return (
            transposed.indices[copy] if transposed is not None and transposed.axis is axis else None
        )

    def is_aligned_to(self, multiple: int, index: Index) -> bool:
        """The lanes walk one by one, and the first of them all is a multiple wherever the loops
        around are."""
        for variable, coefficient in index.terms:
            if variable is self.axis:
                if coefficient != 1:
                    return False
            elif isinstance(variable, Computed) or not divides(multiple, coefficient):
                return False
        return index.coefficient(self.axis) == 1 and divides(multiple, index.constant)


def remaining_lanes(e: Emitter, first: Value, extent: Value) -> tuple[Value, bool]:
    """Those of a vector that begins at `first`, and whether that is known to be one."""
    if first.text.isdigit() and extent.text.isdigit():
        count = int(extent.text) - int(first.text)
        return e.mask(lane < count for lane in range(e.width)), count == 1
    remaining = e.splat(e.binary("sub", extent, first))
    return e.compare("slt", e.lane_numbers(), remaining), False


def store_to_peel_for(
    axis: Axis, body: Iterable[Stmt], non_temporal: Collection[Buffer]
) -> Store | None:
    """The first non-temporal store whose rows begin within a line. A loop that draws numbers or
    adds lanes up begins with whole vectors."""
    extent = axis.extent
    if isinstance(extent, int) and extent < CPU.peeled_row_elements:
        return None
    if not all(isinstance(s, Let | Load | Store | Constant | Position) for s in body):
        return None
    for store in body:
        if isinstance(store, Store) and store.buffer in non_temporal:
            terms, line = store.index.terms, CPU.line_bytes // store.buffer.dtype.bytes
            is_plain = all(isinstance(variable, Axis) for variable, _ in terms)
            is_aligned = LaneLoop(axis, (), None, False).is_aligned_to(line, store.index)
            if is_plain and not is_aligned and store.index.coefficient(axis) == 1:
                return store
    return None


def elements_until_line(e: Emitter, dtype: DType, place: Value, extent: Value) -> Value:
    """How many elements, at most `extent`, are left of the line that the one at `place` is in."""
    rest = e.binary(
        "and", e.binary("sub", e.i64(0), place), e.i64(CPU.line_bytes // dtype.bytes - 1)
    )
    return e.select(e.compare("slt", rest, extent), rest, extent)


def can_share_philox(lanes: LaneLoop | None, index: Index) -> bool:
    """Whether one Philox makes the random numbers of four vectors (philox.words4)."""
    if lanes is None or len(lanes.firsts) % 4:
        return False
    return lanes.is_aligned_to(4, index)


def fills_lines(lanes: LaneLoop | None, width: int, dtype: DType, index: Index) -> bool:
    """Whether whole vectors are stored one after the other from the start of a cache's line, each
    of as many bytes as one instruction can store past the caches."""
    if lanes is None or lanes.mask is not None or width * dtype.bytes < CPU.streaming_store_bytes:
        return False
    if (peeled := lanes.peeled) is not None:
        return index == peeled.index and dtype.bytes == peeled.buffer.dtype.bytes
    return lanes.is_aligned_to(CPU.line_bytes // dtype.bytes, index)
