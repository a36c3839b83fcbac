"""Matrices in memory, and products of them, as the printers of both kinds of tiles take them
(`micro_kernel.py`, `skinny_matmul.py`): where elements lie, arithmetic on sizes that may be
numbers, and loops over pieces of an extent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hemstitch.targets.cpu.emitter import Emitter, Value

SHRINK_FACTOR = 3  # times: the next size of tiles, where the number of rows is not known


@dataclass(frozen=True, slots=True)
class Matrix:
    """f32, or pairs of bf16, in memory: `down` of them from a row to the next, `across` from a
    column to the next."""

    start: Value
    row_stride: Value
    column_stride: Value

    def at(self, e: Emitter, row: Value, column: Value) -> Value:
        place = plus(e, times(e, row, self.row_stride), times(e, column, self.column_stride))
        return moved(e, self.start, place)

    def submatrix(self, e: Emitter, row: Value, column: Value) -> Matrix:
        """Without the rows and columns before these."""
        return replace(self, start=self.at(e, row, column))


@dataclass(frozen=True, slots=True)
class RightPanels:
    """So many `columns` of the right operand lie together, then, `step` elements on, the next."""

    columns: int
    step: Value


@dataclass(frozen=True, slots=True)
class BandMask:
    """An element or a term is of use where the value of the band is not negative: the `start`, and
    the row, the column and the step, each times its sign, which is -1, 0 or 1. `k_pack`: terms of a
    step, 1 or a pair."""

    start: Value
    row_sign: int
    column_sign: int
    k_sign: int
    k_pack: int

    def skip_steps(self, e: Emitter, step: Value) -> BandMask:
        """Where steps are counted from this one on."""
        skipped = times(e, step, e.i64(self.k_sign * self.k_pack))
        return replace(self, start=plus(e, self.start, skipped))

    def ends(self, e: Emitter, extents: Sequence[tuple[Value, int]], k_extent: Value) -> Ends:
        """Of `steps`: from the first to behind the last that are of use to an element of a tile,
        whose rows and columns are each a first one and how many."""
        largest = self.start
        for (first, count), sign in zip(extents, (self.row_sign, self.column_sign)):
            if sign > 0:
                largest = plus(e, largest, plus(e, first, e.i64(count - 1)))
            elif sign < 0:
                largest = e.binary("sub", largest, first)
        zero, one, shift = e.i64(0), e.i64(1), e.i64(self.k_pack - 1)
        if self.k_sign > 0:
            first = e.intrinsic("smax", e.binary("sub", zero, largest), zero)
            return e.binary("lshr", first, shift), k_extent
        if self.k_sign < 0:
            last = e.binary("add", e.binary("ashr", largest, shift), one)
            return zero, e.intrinsic("smin", last, k_extent)
        return zero, e.select(e.compare("slt", largest, zero), zero, k_extent)


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """result = left * right: `rows` by `columns`, each a sum over K (`k_extent`). The columns of
    `right` (inside a panel, where there are `panels`), or K of both, and the columns of `result`
    are contiguous.

    `is_padded`: a row of the result has room for whole vectors. `is_paired`: both operands are
    pairs of bf16. `band`: what contributes; None for everything. `is_first`: whether `result` is
    written, not added to; None: it is. `batch_reduced`: matmuls that are added to the result, of as
    many rows and columns; then all of K is one block.

    To prefetch meanwhile: operands that are not packed, `prefetch_steps` of K ahead; the next block
    of a right operand that is larger than L2 (`is_out_of_cache`); and `prefetch_regions`, each a
    place and its bytes.
    """

    left: Matrix
    right: Matrix
    result: Matrix
    rows: Value
    columns: Value
    k_extent: Value
    is_padded: bool
    is_paired: bool
    max_rows: int | None = None
    panels: RightPanels | None = None
    band: BandMask | None = None
    is_first: Value | None = None
    prefetch_steps: int | None = None
    is_out_of_cache: bool = False
    prefetch_regions: Sequence[tuple[Value, int]] = ()
    batch_reduced: Sequence[MatmulTile] = ()

    @property
    def is_left_column_major(self) -> bool:
        """What is multiplied in one step lies side by side in the left operand as well."""
        return self.left.row_stride.text == "1"

    @property
    def is_k_contiguous(self) -> bool:
        """The steps of both operands lie side by side: there are few columns."""
        return self.right.row_stride.text == "1" and self.right.column_stride.text != "1"

    def right_at(self, e: Emitter, column: Value) -> Value:
        """The first step of a column."""
        if self.panels is None:
            return self.right.at(e, e.i64(0), column)
        width = e.i64(self.panels.columns)
        panel_offset = times(e, divided(e, column, width), self.panels.step)
        return moved(e, self.right.start, plus(e, panel_offset, remainder(e, column, width)))


def as_number(value: Value) -> int | None:
    """None for what only a call knows."""
    return None if value.text.startswith("%") else int(value.text)


Pieces = list[tuple[Value, Value, int]]
Ends = tuple[Value, Value]


def pieces(e: Emitter, extent: Value, most: int, unit: int) -> Pieces:
    """(from, to, step): steps of at most `most` and about equal; then what is left, as one step if
    the extent is known, else in fewer and fewer, down to `unit`."""
    known = as_number(extent)
    if known is None:
        return _pieces_of_unknown(e, extent, most, unit)
    count = max(1, -(-known // most))
    step = max(1, -(-known // (count * unit))) * unit
    whole = known // step * step
    ends = [(0, whole, step), (whole, known, known - whole)]
    return [(e.i64(low), e.i64(high), size) for low, high, size in ends if low < high]


def _pieces_of_unknown(e: Emitter, extent: Value, most: int, unit: int) -> Pieces:
    pieces: Pieces = []
    low, step = e.i64(0), most
    while step > unit:
        whole = e.binary("sub", extent, e.binary("srem", extent, e.i64(step)))
        pieces.append((low, whole, step))
        low, step = whole, max(step // (SHRINK_FACTOR * unit) * unit, unit)
    return [*pieces, (low, extent, unit)]


def loop_over(
    e: Emitter, low: Value, high: Value, step: int, inside: Callable[[Value], None]
) -> None:
    first, last = as_number(low), as_number(high)
    if first is not None and last is not None and last - first == step:
        inside(low)
        return

    def run(index: Value, carried: Sequence[Value]) -> Sequence[Value]:
        inside(index)
        return carried

    e.loop(low, high, e.i64(step), [], run)


def divided(e: Emitter, a: Value, b: Value) -> Value:
    known = as_number(a)
    return e.binary("udiv", a, b) if known is None else e.i64(known // int(b.text))


def remainder(e: Emitter, a: Value, b: Value) -> Value:
    known = as_number(a)
    return e.binary("urem", a, b) if known is None else e.i64(known % int(b.text))


def moved(e: Emitter, start: Value, offset: Value) -> Value:
    if offset.text == "0":
        return start
    return e.define("ptr", f"getelementptr float, {start}, {offset}")


def times(e: Emitter, a: Value, b: Value) -> Value:
    if "%" not in a.text + b.text:
        return e.i64(int(a.text) * int(b.text))
    if a.text == "1":
        return b
    return a if b.text == "1" else e.binary("mul", a, b)


def plus(e: Emitter, a: Value, b: Value) -> Value:
    if "%" not in a.text + b.text:
        return e.i64(int(a.text) + int(b.text))
    if a.text == "0":
        return b
    return a if b.text == "0" else e.binary("add", a, b)
