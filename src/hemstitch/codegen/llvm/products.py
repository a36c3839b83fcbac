"""Products of matrices in registers: a tile of rows by vectors is added up step by step, in each
step the vectors of one row of the right operand times one element of the left for each row (Goto
and van de Geijn, Anatomy of High-Performance Matrix Multiplication, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hemstitch.codegen.llvm import memory
from hemstitch.codegen.llvm.emitter import Emitter, Value
from hemstitch.ir.types import DType

F32 = DType.F32
# Rows of a tile, by how many vectors it is wide: what fits 32 and 16 registers beside the vectors
# of the right operand and an element of the left, and at least as many sums as are in flight.
ROWS_OF_32: Sequence[int] = (0, 12, 12, 8, 6)
ROWS_OF_16: Sequence[int] = (0, 8, 6)


@dataclass(frozen=True, slots=True)
class Matrix:
    """f32 in memory: `down` elements from a row to the next, `across` from a column to the next."""

    start: Value
    down: Value
    across: Value

    def at(self, e: Emitter, row: Value, column: Value) -> Value:
        place = _sum(e, _times(e, row, self.down), _times(e, column, self.across))
        return e.define("ptr", f"getelementptr float, {self.start}, {place}")


@dataclass(frozen=True, slots=True)
class Product:
    """result = left * right: `rows` by `columns`, each a sum of `steps`. The columns of `right` and
    of `result` lie side by side; the latter may have room for whole vectors of them."""

    left: Matrix
    right: Matrix
    result: Matrix
    rows: Value
    columns: Value
    steps: Value
    has_room: bool


def multiply(e: Emitter, product: Product) -> None:
    """Strips of columns, so that one of the right operand stays in L1 while rows go by."""
    heights = ROWS_OF_32 if e.has_avx512 else ROWS_OF_16
    for low, high, columns in _pieces(e, product.columns, (len(heights) - 1) * e.width, e.width):
        _each(e, low, high, columns, partial(_strip, e, product, heights, columns))


def _strip(
    e: Emitter, product: Product, heights: Sequence[int], columns: int, column: Value
) -> None:
    wide = -(-columns // e.width)
    mask = _mask(e, product.columns, column, columns)
    for low, high, rows in _pieces(e, product.rows, heights[wide], 1):
        tile = _Tile(product, rows, wide, column, mask)
        _each(e, low, high, rows, partial(tile.print, e))


@dataclass(frozen=True, slots=True)
class _Tile:
    """`mask`: the columns of the last vector that exist, None for all."""

    product: Product
    rows: int
    vectors: int
    column: Value
    mask: Value | None

    def print(self, e: Emitter, row: Value) -> None:
        product = self.product
        left = product.left.at(e, row, e.i64(0))
        right = product.right.at(e, e.i64(0), self.column)
        zero = e.constant(0.0, "float")

        def step(number: Value, sums: Sequence[Value]) -> Sequence[Value]:
            place = _times(e, number, product.right.down)
            vectors = [
                memory.load(e, F32, self._vector(e, right, place, k), 1, self._of(k, self.mask))
                for k in range(self.vectors)
            ]
            added = []
            for k in range(self.rows):
                offset = _times(e, e.i64(k), product.left.down)
                place = _sum(e, offset, _times(e, number, product.left.across))
                one = memory.load(e, F32, _moved(e, left, place), 0, None)
                sums_of_row = sums[k * self.vectors : (k + 1) * self.vectors]
                added += [e.fma(one, v, total) for v, total in zip(vectors, sums_of_row)]
            return added

        sums = [zero] * (self.rows * self.vectors)
        sums = e.loop(e.i64(0), product.steps, e.i64(1), sums, step)
        mask = None if product.has_room else self.mask
        for k in range(self.rows):
            start = product.result.at(e, _sum(e, row, e.i64(k)), self.column)
            for j in range(self.vectors):
                place = self._vector(e, start, e.i64(0), j)
                memory.store(e, F32, place, 1, sums[k * self.vectors + j], self._of(j, mask))

    def _vector(self, e: Emitter, start: Value, offset: Value, number: int) -> Value:
        return _moved(e, start, _sum(e, offset, e.i64(number * e.width)))

    def _of(self, vector: int, mask: Value | None) -> Value | None:
        return mask if vector == self.vectors - 1 else None


Pieces = list[tuple[Value, Value, int]]


def _pieces(e: Emitter, extent: Value, most: int, unit: int) -> Pieces:
    """(from, to, step): steps of at most `most` and about equal; then what is left, as one step if
    the extent is known, else in steps of `unit`."""
    if extent.text.startswith("%"):
        border = e.binary("sub", extent, e.binary("srem", extent, e.i64(most)))
        return [(e.i64(0), border, most), (border, extent, unit)]
    known = int(extent.text)
    steps = max(1, -(-known // most))
    step = max(1, -(-known // (steps * unit))) * unit
    whole = known // step * step
    ends = [(0, whole, step), (whole, known, known - whole)]
    return [(e.i64(low), e.i64(high), size) for low, high, size in ends if low < high]


def _mask(e: Emitter, extent: Value, column: Value, columns: int) -> Value | None:
    """Of the last vector of a strip."""
    if columns % e.width:
        return e.mask(lane < columns % e.width for lane in range(e.width))
    if not extent.text.startswith("%") or columns > e.width:
        return None
    return e.compare("slt", e.lane_numbers(), e.splat(e.binary("sub", extent, column)))


def _each(e: Emitter, low: Value, high: Value, step: int, inside: Callable[[Value], None]) -> None:
    is_known = not low.text.startswith("%") and not high.text.startswith("%")
    if is_known and int(high.text) - int(low.text) == step:
        inside(low)
        return

    def run(index: Value, carried: Sequence[Value]) -> Sequence[Value]:
        inside(index)
        return carried

    e.loop(low, high, e.i64(step), [], run)


def _moved(e: Emitter, start: Value, offset: Value) -> Value:
    if offset.text == "0":
        return start
    return e.define("ptr", f"getelementptr float, {start}, {offset}")


def _times(e: Emitter, a: Value, b: Value) -> Value:
    if "%" not in a.text + b.text:
        return e.i64(int(a.text) * int(b.text))
    if a.text == "1":
        return b
    return a if b.text == "1" else e.binary("mul", a, b)


def _sum(e: Emitter, a: Value, b: Value) -> Value:
    if "%" not in a.text + b.text:
        return e.i64(int(a.text) + int(b.text))
    if a.text == "0":
        return b
    return a if b.text == "0" else e.binary("add", a, b)
