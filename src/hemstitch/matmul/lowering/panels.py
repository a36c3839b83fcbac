"""Packing of right operands (Goto and van de Geijn, Anatomy of High-Performance Matrix
Multiplication, section 4).

A row-major operand that stays in a cache is read in place. Others are packed into panels of a few
columns, so that the micro-kernel reads memory in order:

columns:     0 1 2 3 | 4 5 6 7           memory of a panel:
k = 0        a b c d | . . . .           a b c d  e f g h  ...
k = 1        e f g h | . . . .           bf16 (VNNI layout): a e b f c g d h  ...

An operand that is the same in all rows of a nest is packed once, by all tasks, in a phase before.
One that depends on rows is packed by the task of these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hemstitch.ir.dims import Dim, quotient
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import Buffer, Loop, Nest, Stmt, Store
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.machine.cpu_numbers import CPU

# Maps a column, the number of the packing loop and an offset in a pack to the name of an element
# and the statements that compute it.
Element = Callable[[Index, int, int], tuple[str, Sequence[Stmt]]]


@dataclass(frozen=True, slots=True)
class ColumnPanels:
    """The columns (N), tiled into `outer` panels of `inner` columns. The last panel may have
    fewer."""

    outer: Axis
    inner: Axis

    @staticmethod
    def of(columns: Axis, width: int) -> ColumnPanels:
        """Panels of `width` columns, or of one vector if there are no more columns than that."""
        extent = columns.extent
        width = (
            CPU.narrow_columns
            if isinstance(extent, int) and extent <= CPU.narrow_columns
            else width
        )
        outer = Axis(f"{columns.name}s", quotient(extent + (width - 1), width))
        return ColumnPanels(outer, Axis(f"{columns.name}i", width, outer, extent))

    @property
    def width(self) -> int:
        """Columns of a panel."""
        assert isinstance(self.inner.extent, int)
        return self.inner.extent

    def column(self) -> Index:
        """The column, as an index of both axes."""
        return at(self.outer).scaled(self.width) + at(self.inner)

    def loop(self, columns: Axis, body: Sequence[Stmt]) -> Loop:
        """A loop over panels that runs `body` for each of `columns`."""
        rewriter = Rewriter({}, lambda index: index.substitute({columns: self.column()}))
        inside = tuple(rewriter.statement(statement) for statement in body)
        return Loop(self.outer, (Loop(self.inner, inside, lanes=True),), lanes=False)


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """The right operand of a skinny matmul, packed column by column: K is contiguous, `k_pack`
    elements at a time."""

    columns: Axis
    k_axis: Axis
    k_pack: int
    buffer: Buffer

    def place(self, column: Index) -> Index:
        """The index of the first element of a pack."""
        size = self.k_axis.extent * self.k_pack
        return column.scaled(size) + at(self.k_axis).scaled(self.k_pack)

    def loops(self, element: Element) -> list[Stmt]:
        """Statements of one task that pack the operand."""
        return [Loop(self.columns, self._fill_column(element), lanes=False)]

    def nests(self, element: Element) -> list[Nest]:
        """Nests of all tasks that pack the operand."""
        why = f"{self.buffer.name}: {self.buffer.why}"
        weight = self.k_axis.extent * self.k_pack
        return [Nest((self.columns,), (), self._fill_column(element), (), weight, why)]

    def _fill_column(self, element: Element) -> tuple[Stmt, ...]:
        definitions: list[Stmt] = []
        stores: list[Stmt] = []
        for k in range(self.k_pack):
            value, body = element(at(self.columns), 0, k)
            definitions += body
            place = self.place(at(self.columns)).shifted(k)
            stores.append(Store(self.buffer, place, value))
        return (Loop(self.k_axis, (*definitions, *stores), lanes=True),)


@dataclass(frozen=True, slots=True)
class PackedOperand:
    """A right operand packed into panels. `k_axis` counts packs of `k_pack` elements along K."""

    panels: ColumnPanels
    k_axis: Axis
    k_pack: int
    buffer: Buffer

    def place(self, panels: ColumnPanels, first: Dim = 0) -> Index:
        """The index of the first element of a pack. `first`: the column where `panels` begin."""
        width, size = self.panels.width, self.k_axis.extent * self.k_pack
        offset = at(panels.outer).scaled(size * width) + at(panels.inner).scaled(self.k_pack)
        return (offset + at(self.k_axis).scaled(width * self.k_pack)).shifted(first * size)

    def loops(self, element: Element) -> list[Stmt]:
        """Statements of one task that pack the operand."""
        return [
            Loop(part.outer, self._fill_panel(element, part, first), lanes=False)
            for part, first in self._parts()
        ]

    def nests(self, element: Element) -> list[Nest]:
        """Nests of all tasks that pack the operand."""
        why = f"{self.buffer.name}: {self.buffer.why}"
        weight = self.k_axis.extent * self.k_pack * self.panels.width
        return [
            Nest((part.outer,), (), self._fill_panel(element, part, first), (), weight, why)
            for part, first in self._parts()
        ]

    def _parts(self) -> Iterator[tuple[ColumnPanels, int]]:
        """The whole panels, and the last one if it is narrower, each with its first column. Only
        loops of a known length are transposed in registers
        (`targets/cpu/register_transpose.py`)."""
        width, columns = self.panels.width, self.panels.inner.limit
        if not isinstance(columns, int):
            yield self.panels, 0
            return
        whole, last_columns = divmod(columns, width)
        if whole:
            outer = Axis(self.panels.outer.name, whole)
            yield ColumnPanels(outer, Axis(self.panels.inner.name, width)), 0
        if last_columns:
            inner = Axis(self.panels.inner.name, last_columns)
            yield ColumnPanels(Axis(self.panels.outer.name, 1), inner), whole * width

    def _fill_panel(self, element: Element, part: ColumnPanels, first: int) -> tuple[Stmt, ...]:
        column = at(part.outer).scaled(self.panels.width) + at(part.inner)
        definitions: list[Stmt] = []
        stores: list[Stmt] = []
        for k in range(self.k_pack):
            value, body = element(column.shifted(first), first // self.panels.width, k)
            definitions += body
            stores.append(Store(self.buffer, self.place(part, first).shifted(k), value))
        lanes = Loop(part.inner, (*definitions, *stores), lanes=True)
        return (Loop(self.k_axis, (lanes,), lanes=False),)
