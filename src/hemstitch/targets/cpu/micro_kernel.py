"""Products of matrices in registers: a tile of rows by vectors is added up step by step, in each
step the vectors of one row of the right operand times one element of the left for each row (Goto
and van de Geijn, Anatomy of High-Performance Matrix Multiplication, section 5). Steps go by in
blocks, so that a strip of the right operand stays in L1 while all rows multiply with it; the sums
of a block are added to the result, which makes them more exact as well. Of bf16 a step is a pair:
two elements of a row or column, one behind the other, are multiplied and added up at once.

Operands that were not packed for it (`matmul/lowering/blocking.py`) come from far away in pieces:
while one block of steps or strip of columns is multiplied, the next is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hemstitch.ir.types import DType
from hemstitch.kernel_ir.placement import LINE
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu import memory, skinny_matmul
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.matmul_operands import (
    Ends,
    MatmulTile,
    as_number,
    divided,
    each_of,
    moved,
    pieces,
    plus,
    times,
)

F32 = DType.F32
# Rows of a tile, by how many vectors it is wide: what fits 32 and 16 registers beside the vectors
# of the right operand and an element of the left, and at least as many sums as are in flight.
ROWS_OF_32: Sequence[int] = (0, 12, 12, 8, 6)
ROWS_OF_16: Sequence[int] = (0, 8, 6)
ELEMENTS = LINE // F32.bytes
L2 = 2


@dataclass(frozen=True, slots=True)
class _Strip:
    """So many `columns` from one on. `mask`: those of the last vector that exist, None for all."""

    column: Value
    columns: int
    mask: Value | None


def multiply(e: Emitter, product: MatmulTile, steps: int) -> None:
    """All blocks of so many `steps` for a strip of columns, or, where the columns are fewer, all
    strips for a block: so L2 has to hold only the rows' steps of the left operand, or only their
    columns. Blocks of half as many steps where lines of both operands also have what other tiles
    need."""
    if product.is_by_steps:
        skinny_matmul.multiply(e, product)
        return
    if product.more:
        steps = as_number(product.steps) or steps
    elif product.is_by_columns and product.strips is None:
        steps //= 2
    if _is_less(product.columns, product.steps):
        product = replace(product, behind=steps)
        _each_block(e, product, steps, lambda p: _each_strip(e, p, partial(_rows, e, p)))
    else:
        product = replace(product, is_far=_is_far(product))
        _each_strip(e, product, lambda s: _each_block(e, product, steps, lambda p: _rows(e, p, s)))


def _is_far(product: MatmulTile) -> bool:
    """A right operand that was not packed and does not stay in L2."""
    columns, steps = as_number(product.columns), as_number(product.steps)
    if product.strips is not None or columns is None or steps is None:
        return False
    return columns * steps > CPU.near_elements


def _is_less(a: Value, b: Value) -> bool:
    first, second = as_number(a), as_number(b)
    return first is not None and second is not None and first < second


def _each_block(
    e: Emitter, product: MatmulTile, size: int, inside: Callable[[MatmulTile], None]
) -> None:
    steps = product.steps
    if (known := as_number(steps)) is not None and known <= size:
        inside(product)
        return

    def block(first: Value, carried: Sequence[Value]) -> Sequence[Value]:
        zero = e.i64(0)
        part = replace(
            product,
            left=product.left.from_(e, zero, first),
            right=product.right.from_(e, first, zero),
            steps=e.intrinsic("smin", e.binary("sub", steps, first), e.i64(size)),
            is_first=e.compare("eq", first, zero),
            wanted=product.wanted and product.wanted.after(e, first),
        )
        inside(part)
        return carried

    at_least_one = e.intrinsic("smax", steps, e.i64(1))
    e.loop(e.i64(0), at_least_one, e.i64(size), [], block)


def _each_strip(e: Emitter, product: MatmulTile, inside: Callable[[_Strip], None]) -> None:
    """As wide as a tile in registers."""
    widest, unit = (len(_heights(e)) - 1) * e.width, e.width
    if product.strips is not None:
        widest = min(widest, product.strips.columns)
        is_known = as_number(product.columns) is not None
        unit = widest if is_known else unit  # none crosses from one strip to the next

    def strip(columns: int, column: Value) -> None:
        inside(_Strip(column, columns, _mask(e, product.columns, column, columns)))

    for low, high, columns in pieces(e, product.columns, widest, unit):
        each_of(e, low, high, columns, partial(strip, columns))


def _heights(e: Emitter) -> Sequence[int]:
    return ROWS_OF_32 if e.features.avx512 else ROWS_OF_16


def _rows(e: Emitter, product: MatmulTile, strip: _Strip) -> None:
    """Tile after tile; the strip stays in L1."""
    vectors = -(-strip.columns // e.width)
    for low, high, rows in pieces(e, product.rows, _heights(e)[vectors], 1):
        tile = _Tile(product, rows, vectors, strip.column, strip.mask)
        each_of(e, low, high, rows, partial(tile.print, e))


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What a tile asks for: from `start` on, `share` elements further after 2 ** `seldom` steps."""

    start: Value
    share: Value
    seldom: int

    def at(self, e: Emitter, step: Value) -> Value:
        turn = e.binary("lshr", step, e.i64(self.seldom)) if self.seldom else step
        return moved(e, self.start, times(e, turn, self.share))


@dataclass(frozen=True, slots=True)
class _Tile:
    """`mask`: as in `_Strip`."""

    product: MatmulTile
    rows: int
    vectors: int
    column: Value
    mask: Value | None

    def print(self, e: Emitter, row: Value) -> None:
        product, zero = self.product, e.constant(0.0, "float")
        sums: Sequence[Value] = [zero] * (self.rows * self.vectors)
        sums = self._added(e, product, row, sums, self._ahead(e, row))
        for each in product.more:
            sums = self._added(e, each, row, sums)
        mask = None if product.has_room else self.mask
        for k in range(self.rows):
            start = product.result.at(e, plus(e, row, e.i64(k)), self.column)
            for j in range(self.vectors):
                place = self._vector(e, start, e.i64(0), j)
                self._store(e, place, sums[k * self.vectors + j], self._of(j, mask))

    def _added(
        self,
        e: Emitter,
        product: MatmulTile,
        row: Value,
        sums: Sequence[Value],
        ahead: Sequence[_Ahead] = (),
    ) -> Sequence[Value]:
        """What `product` adds to `sums`. `ahead`: what it asks for."""
        left, right = product.left.at(e, row, e.i64(0)), product.right_at(e, self.column)
        # Packed strips have whole vectors.
        mask_of_right = self.mask if product.strips is None else None

        def step(number: Value, sums: Sequence[Value]) -> Sequence[Value]:
            for each in ahead:
                memory.prefetch(e, F32, each.at(e, number), 0, L2)
            place = times(e, number, product.right.down)
            kind = DType.I32 if product.is_paired else F32
            vectors = [
                memory.load(
                    e, kind, self._vector(e, right, place, k), 1, self._of(k, mask_of_right)
                )
                for k in range(self.vectors)
            ]
            added = []
            for k in range(self.rows):
                offset = times(e, e.i64(k), product.left.down)
                place = plus(e, offset, times(e, number, product.left.across))
                one = _everywhere(e, moved(e, left, place), product.is_paired)
                sums_of_row = sums[k * self.vectors : (k + 1) * self.vectors]
                add = e.add_products if product.is_paired else e.fma
                added += [add(one, v, total) for v, total in zip(vectors, sums_of_row)]
            return added

        first, last = self._ends(e, product, row)
        return e.loop(first, last, e.i64(1), list(sums), step)

    def _ends(self, e: Emitter, product: MatmulTile, row: Value) -> Ends:
        """Of the steps that the tile multiplies. Without any its sums are zero."""
        columns = self.vectors * e.width
        if product.wanted is None:
            return e.i64(0), product.steps
        return product.wanted.ends(e, ((row, self.rows), (self.column, columns)), product.steps)

    def _ahead(self, e: Emitter, row: Value) -> list[_Ahead]:
        """A share of what comes next is asked for in every step of every tile."""
        found = self._next_rows(e, row)
        if self.product.is_far:
            return found + self._next_of_strip(e, row, self.product.right_at(e, self.column))
        left = self.product.left.at(e, row, e.i64(0))
        return found + self._next_of_all(e, row, left)

    def _next_rows(self, e: Emitter, row: Value) -> list[_Ahead]:
        """A line, or a part of one, in each step: they are asked for once or a few times."""
        product, found = self.product, list[_Ahead]()
        steps, columns = as_number(product.steps), as_number(product.columns)
        if not steps or columns is None or product.most_rows is None:
            return found
        number, tiles = self._number(e, row, columns, product.most_rows)
        for start, size in product.next_rows:
            lines = -(-size // (LINE * tiles))  # of a tile
            share = -(-lines // steps)
            seldom = max(0, (steps // lines).bit_length() - 1)
            first = times(e, number, e.i64(lines * ELEMENTS))
            for k in range(share):
                place = plus(e, first, e.i64(k * ELEMENTS))
                found.append(_Ahead(moved(e, start, place), e.i64(share * ELEMENTS), seldom))
        return found

    def _number(self, e: Emitter, row: Value, columns: int, rows: int) -> tuple[Value, int]:
        """Which tile it is, and of how many."""
        width = self.vectors * e.width
        tiles, strips = -(-rows // self.rows), -(-columns // width)
        strip = divided(e, self.column, e.i64(width))
        number = plus(e, times(e, strip, e.i64(tiles)), divided(e, row, e.i64(self.rows)))
        return number, tiles * strips

    def _next_of_strip(self, e: Emitter, row: Value, right: Value) -> list[_Ahead]:
        """The strip's next block; where it has one only, the next strip. Each tile asks for the
        vectors of some steps."""
        product = self.product
        if product.most_rows is None:
            return []
        is_whole = as_number(product.steps) is not None
        down, number = product.right.down, divided(e, row, e.i64(self.rows))
        behind = e.i64(self.vectors * e.width) if is_whole else times(e, product.steps, down)
        seldom = (-(-product.most_rows // self.rows)).bit_length() - 1
        first = e.binary("lshr", times(e, number, product.steps), e.i64(seldom))
        place = plus(e, behind, times(e, first, down))
        vectors = (self._vector(e, right, place, k) for k in range(self.vectors))
        return [_Ahead(start, down, seldom) for start in vectors]

    def _next_of_all(self, e: Emitter, row: Value, left: Value) -> list[_Ahead]:
        """The next block of each operand that lies as it came: of the right one in the order of
        memory, of the left one, whose other columns may be other tasks', what this tile's rows
        have, some in each strip."""
        product, found = self.product, list[_Ahead]()
        columns, apart = as_number(product.columns), as_number(product.right.down)
        if product.behind is None or product.is_first is None or columns is None or apart is None:
            return found
        behind, strips = e.i64(product.behind), -(-columns // (self.vectors * e.width))
        strip = divided(e, self.column, e.i64(self.vectors * e.width))
        if product.strips is None and product.most_rows is not None:
            number, tiles = self._number(e, row, columns, product.most_rows)
            share = e.i64(-(-apart // tiles))
            before = times(e, number, times(e, product.steps, share))
            place = plus(e, times(e, behind, product.right.down), before)
            found.append(_Ahead(moved(e, product.right.start, place), share, 0))
        if product.is_by_columns:
            seldom = strips.bit_length() - 1
            first = e.binary("lshr", times(e, strip, behind), e.i64(seldom))
            place = times(e, plus(e, behind, first), product.left.across)
            found.append(_Ahead(moved(e, left, place), product.left.across, seldom))
        return found

    def _store(self, e: Emitter, place: Value, total: Value, mask: Value | None) -> None:
        if (is_first := self.product.is_first) is not None:
            before = memory.load(e, F32, place, 1, mask)
            nothing = e.constant(0.0, "float")
            total = e.binary("fadd", e.select(is_first, nothing, before), total)
        memory.store(e, F32, place, 1, total, mask)

    def _vector(self, e: Emitter, start: Value, offset: Value, number: int) -> Value:
        return moved(e, start, plus(e, offset, e.i64(number * e.width)))

    def _of(self, vector: int, mask: Value | None) -> Value | None:
        return mask if vector == self.vectors - 1 else None


def _everywhere(e: Emitter, place: Value, is_paired: bool) -> Value:
    if not is_paired:
        return memory.load(e, F32, place, 0, None)
    return e.splat(e.define("i32", f"load i32, {place}, align {DType.BF16.bytes}"))


def _mask(e: Emitter, extent: Value, column: Value, columns: int) -> Value | None:
    """Of the last vector of a strip."""
    if columns % e.width:
        return e.mask(lane < columns % e.width for lane in range(e.width))
    if as_number(extent) is not None or columns > e.width:
        return None
    return e.compare("slt", e.lane_numbers(), e.splat(e.binary("sub", extent, column)))
