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
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu import memory, skinny_matmul
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.matmul_operands import (
    Ends,
    MatmulTile,
    as_number,
    divided,
    loop_over,
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
ELEMENTS = CPU.line_bytes // F32.bytes
L2 = 2


@dataclass(frozen=True, slots=True)
class _MicroPanel:
    """So many `columns` from one on. `mask`: those of the last vector that exist, None for all."""

    column: Value
    columns: int
    mask: Value | None


def multiply(e: Emitter, matmul: MatmulTile, steps: int) -> None:
    """All blocks of so many `steps` for a strip of columns, or, where the columns are fewer, all
    strips for a block: so L2 has to hold only the rows' steps of the left operand, or only their
    columns. Blocks of half as many steps where lines of both operands also have what other tiles
    need."""
    if matmul.is_k_contiguous:
        skinny_matmul.multiply(e, matmul)
        return
    if matmul.batch_reduced:
        steps = as_number(matmul.k_extent) or steps
    elif matmul.is_left_column_major and matmul.panels is None:
        steps //= 2
    if _is_smaller(matmul.columns, matmul.k_extent):
        matmul = replace(matmul, prefetch_steps=steps)
        _each_k_block(
            e,
            matmul,
            steps,
            lambda block: _each_micro_panel(e, block, partial(_micro_tiles, e, block)),
        )
    else:
        matmul = replace(matmul, is_out_of_cache=_is_out_of_cache(matmul))
        _each_micro_panel(
            e,
            matmul,
            lambda panel: _each_k_block(
                e, matmul, steps, lambda block: _micro_tiles(e, block, panel)
            ),
        )


def _is_out_of_cache(matmul: MatmulTile) -> bool:
    """A right operand that was not packed and does not stay in L2."""
    columns, steps = as_number(matmul.columns), as_number(matmul.k_extent)
    if matmul.panels is not None or columns is None or steps is None:
        return False
    return columns * steps > CPU.near_elements


def _is_smaller(a: Value, b: Value) -> bool:
    first, second = as_number(a), as_number(b)
    return first is not None and second is not None and first < second


def _each_k_block(
    e: Emitter, matmul: MatmulTile, size: int, inside: Callable[[MatmulTile], None]
) -> None:
    steps = matmul.k_extent
    if (known := as_number(steps)) is not None and known <= size:
        inside(matmul)
        return

    def block(first: Value, carried: Sequence[Value]) -> Sequence[Value]:
        zero = e.i64(0)
        part = replace(
            matmul,
            left=matmul.left.submatrix(e, zero, first),
            right=matmul.right.submatrix(e, first, zero),
            k_extent=e.intrinsic("smin", e.binary("sub", steps, first), e.i64(size)),
            is_first=e.compare("eq", first, zero),
            band=matmul.band and matmul.band.skip_steps(e, first),
        )
        inside(part)
        return carried

    at_least_one = e.intrinsic("smax", steps, e.i64(1))
    e.loop(e.i64(0), at_least_one, e.i64(size), [], block)


def _each_micro_panel(
    e: Emitter, matmul: MatmulTile, inside: Callable[[_MicroPanel], None]
) -> None:
    """As wide as a tile in registers."""
    widest, unit = (len(_rows_by_vectors(e)) - 1) * e.width, e.width
    if matmul.panels is not None:
        widest = min(widest, matmul.panels.columns)
        is_known = as_number(matmul.columns) is not None
        unit = widest if is_known else unit  # none crosses from one strip to the next

    def micro_panel(columns: int, column: Value) -> None:
        inside(_MicroPanel(column, columns, _mask(e, matmul.columns, column, columns)))

    for low, high, columns in pieces(e, matmul.columns, widest, unit):
        loop_over(e, low, high, columns, partial(micro_panel, columns))


def _rows_by_vectors(e: Emitter) -> Sequence[int]:
    return ROWS_OF_32 if e.features.many_registers else ROWS_OF_16


def _micro_tiles(e: Emitter, matmul: MatmulTile, micro_panel: _MicroPanel) -> None:
    """Tile after tile; the strip stays in L1."""
    vectors = -(-micro_panel.columns // e.width)
    for low, high, rows in pieces(e, matmul.rows, _rows_by_vectors(e)[vectors], 1):
        tile = _Tile(matmul, rows, vectors, micro_panel.column, micro_panel.mask)
        loop_over(e, low, high, rows, partial(tile.print, e))


@dataclass(frozen=True, slots=True)
class _Prefetch:
    """What a tile asks for: from `start` on, `share` elements further after 2 ** `seldom` steps."""

    start: Value
    stride: Value
    period_log2: int

    def at(self, e: Emitter, step: Value) -> Value:
        turn = e.binary("lshr", step, e.i64(self.period_log2)) if self.period_log2 else step
        return moved(e, self.start, times(e, turn, self.stride))


@dataclass(frozen=True, slots=True)
class _Tile:
    """`mask`: as in `_Strip`."""

    matmul: MatmulTile
    rows: int
    vectors: int
    column: Value
    mask: Value | None

    def print(self, e: Emitter, row: Value) -> None:
        matmul, zero = self.matmul, e.constant(0.0, "float")
        sums: Sequence[Value] = [zero] * (self.rows * self.vectors)
        sums = self._multiply_accumulate(e, matmul, row, sums, self._prefetches(e, row))
        for reduced in matmul.batch_reduced:
            sums = self._multiply_accumulate(e, reduced, row, sums)
        mask = None if matmul.is_padded else self.mask
        for k in range(self.rows):
            start = matmul.result.at(e, plus(e, row, e.i64(k)), self.column)
            for j in range(self.vectors):
                place = self._vector(e, start, e.i64(0), j)
                self._store(e, place, sums[k * self.vectors + j], self._mask_of(j, mask))

    def _multiply_accumulate(
        self,
        e: Emitter,
        matmul: MatmulTile,
        row: Value,
        sums: Sequence[Value],
        prefetches: Sequence[_Prefetch] = (),
    ) -> Sequence[Value]:
        """`sums`, and what `matmul` adds to them. `prefetches`: what it asks for meanwhile."""
        left, right = matmul.left.at(e, row, e.i64(0)), matmul.right_at(e, self.column)
        # Packed strips have whole vectors.
        mask_of_right = self.mask if matmul.panels is None else None

        def step(number: Value, sums: Sequence[Value]) -> Sequence[Value]:
            for prefetch in prefetches:
                memory.prefetch(e, F32, prefetch.at(e, number), 0, L2)
            offset = times(e, number, matmul.right.row_stride)
            kind = DType.I32 if matmul.is_paired else F32
            vectors = [
                memory.load(
                    e, kind, self._vector(e, right, offset, j), 1, self._mask_of(j, mask_of_right)
                )
                for j in range(self.vectors)
            ]
            new_sums = []
            for k in range(self.rows):
                row_offset = times(e, e.i64(k), matmul.left.row_stride)
                place = plus(e, row_offset, times(e, number, matmul.left.column_stride))
                element = _broadcast(e, moved(e, left, place), matmul.is_paired)
                sums_of_row = sums[k * self.vectors : (k + 1) * self.vectors]
                add = e.dot_bf16 if matmul.is_paired else e.fma
                new_sums += [add(element, v, total) for v, total in zip(vectors, sums_of_row)]
            return new_sums

        first, last = self._ends(e, matmul, row)
        return e.loop(first, last, e.i64(1), list(sums), step)

    def _ends(self, e: Emitter, matmul: MatmulTile, row: Value) -> Ends:
        """Of the steps that the tile multiplies. Without any its sums are zero."""
        columns = self.vectors * e.width
        if matmul.band is None:
            return e.i64(0), matmul.k_extent
        return matmul.band.ends(e, ((row, self.rows), (self.column, columns)), matmul.k_extent)

    def _prefetches(self, e: Emitter, row: Value) -> list[_Prefetch]:
        """A share of what comes next is asked for in every step of every tile."""
        prefetches = self._region_prefetches(e, row)
        if self.matmul.is_out_of_cache:
            return prefetches + self._panel_prefetches(e, row, self.matmul.right_at(e, self.column))
        left = self.matmul.left.at(e, row, e.i64(0))
        return prefetches + self._operand_prefetches(e, row, left)

    def _region_prefetches(self, e: Emitter, row: Value) -> list[_Prefetch]:
        """A line, or a part of one, in each step: they are asked for once or a few times."""
        matmul, prefetches = self.matmul, list[_Prefetch]()
        steps, columns = as_number(matmul.k_extent), as_number(matmul.columns)
        if not steps or columns is None or matmul.max_rows is None:
            return prefetches
        tile_number, tiles = self._tile_number(e, row, columns, matmul.max_rows)
        for start, size in matmul.prefetch_regions:
            tile_lines = -(-size // (CPU.line_bytes * tiles))  # of a tile
            lines_per_step = -(-tile_lines // steps)
            period_log2 = max(0, (steps // tile_lines).bit_length() - 1)
            first = times(e, tile_number, e.i64(tile_lines * ELEMENTS))
            for k in range(lines_per_step):
                place = moved(e, start, plus(e, first, e.i64(k * ELEMENTS)))
                stride = e.i64(lines_per_step * ELEMENTS)
                prefetches.append(_Prefetch(place, stride, period_log2))
        return prefetches

    def _tile_number(self, e: Emitter, row: Value, columns: int, rows: int) -> tuple[Value, int]:
        """Which tile it is, and of how many."""
        width = self.vectors * e.width
        tiles, panel_count = -(-rows // self.rows), -(-columns // width)
        panel = divided(e, self.column, e.i64(width))
        number = plus(e, times(e, panel, e.i64(tiles)), divided(e, row, e.i64(self.rows)))
        return number, tiles * panel_count

    def _panel_prefetches(self, e: Emitter, row: Value, right: Value) -> list[_Prefetch]:
        """The strip's next block; where it has one only, the next strip. Each tile asks for the
        vectors of some steps."""
        matmul = self.matmul
        if matmul.max_rows is None:
            return []
        is_whole = as_number(matmul.k_extent) is not None
        row_stride, row_tile = matmul.right.row_stride, divided(e, row, e.i64(self.rows))
        distance = (
            e.i64(self.vectors * e.width) if is_whole else times(e, matmul.k_extent, row_stride)
        )
        period_log2 = (-(-matmul.max_rows // self.rows)).bit_length() - 1
        first = e.binary("lshr", times(e, row_tile, matmul.k_extent), e.i64(period_log2))
        place = plus(e, distance, times(e, first, row_stride))
        vectors = (self._vector(e, right, place, k) for k in range(self.vectors))
        return [_Prefetch(start, row_stride, period_log2) for start in vectors]

    def _operand_prefetches(self, e: Emitter, row: Value, left: Value) -> list[_Prefetch]:
        """The next block of each operand that lies as it came: of the right one in the order of
        memory, of the left one, whose other columns may be other tasks', what this tile's rows
        have, some in each strip."""
        matmul, prefetches = self.matmul, list[_Prefetch]()
        if matmul.prefetch_steps is None or matmul.is_first is None:
            return prefetches
        columns, row_stride = as_number(matmul.columns), as_number(matmul.right.row_stride)
        if columns is None or row_stride is None:
            return prefetches
        distance, width = e.i64(matmul.prefetch_steps), self.vectors * e.width
        panel_count = -(-columns // width)
        panel = divided(e, self.column, e.i64(width))
        if matmul.panels is None and matmul.max_rows is not None:
            tile_number, tiles = self._tile_number(e, row, columns, matmul.max_rows)
            stride = e.i64(-(-row_stride // tiles))
            before = times(e, tile_number, times(e, matmul.k_extent, stride))
            place = plus(e, times(e, distance, matmul.right.row_stride), before)
            prefetches.append(_Prefetch(moved(e, matmul.right.start, place), stride, 0))
        if matmul.is_left_column_major:
            period_log2 = panel_count.bit_length() - 1
            first = e.binary("lshr", times(e, panel, distance), e.i64(period_log2))
            column_stride = matmul.left.column_stride
            place = times(e, plus(e, distance, first), column_stride)
            prefetches.append(_Prefetch(moved(e, left, place), column_stride, period_log2))
        return prefetches

    def _store(self, e: Emitter, place: Value, total: Value, mask: Value | None) -> None:
        if (is_first := self.matmul.is_first) is not None:
            previous = memory.load(e, F32, place, 1, mask)
            zero = e.constant(0.0, "float")
            total = e.binary("fadd", e.select(is_first, zero, previous), total)
        memory.store(e, F32, place, 1, total, mask)

    def _vector(self, e: Emitter, start: Value, offset: Value, number: int) -> Value:
        return moved(e, start, plus(e, offset, e.i64(number * e.width)))

    def _mask_of(self, vector: int, mask: Value | None) -> Value | None:
        return mask if vector == self.vectors - 1 else None


def _broadcast(e: Emitter, place: Value, is_paired: bool) -> Value:
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
