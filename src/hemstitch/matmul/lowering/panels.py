"""Where the right operand of a product lies for printers that multiply tiles.

Where it is, if that is near: columns side by side, and few enough to stay in a cache. Else it is
packed: strips of columns, each with its steps one behind the other, so that a tile of the product
reads memory in order (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication,
section 4). Of bf16 two steps of a column lie side by side, as processors multiply them at once. A
matrix that all rows of a nest multiply with is packed by all tasks, once, in a phase before; one
that belongs to some rows by the task that has these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hemstitch.ir.dims import Dim, quotient
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import Buffer, Loop, Nest, Stmt, Store
from hemstitch.kernel_ir.rewriter import Rewriter
from hemstitch.machine.cpu_numbers import CPU

# Of an element in a column, of which copy of the loops, and which of the steps that lie side by
# side: the name of its value, and the statements that make it.
Element = Callable[[Index, int, int], tuple[str, Sequence[Stmt]]]


@dataclass(frozen=True, slots=True)
class ColumnPanels:
    """Columns cut into `outer` strips of `inner`, the last of which may have fewer."""

    outer: Axis
    inner: Axis

    @staticmethod
    def of(columns: Axis, width: int) -> ColumnPanels:
        """As wide as that, or one vector of the widest where there are no more columns."""
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
        assert isinstance(self.inner.extent, int)
        return self.inner.extent

    def column(self) -> Index:
        """Which of all."""
        return at(self.outer).scaled(self.width) + at(self.inner)

    def loop(self, columns: Axis, body: Sequence[Stmt]) -> Loop:
        """`body` in each of `columns`, strip after strip."""
        rewriter = Rewriter({}, lambda index: index.substitute({columns: self.column()}))
        inside = tuple(rewriter.statement(statement) for statement in body)
        return Loop(self.outer, (Loop(self.inner, inside, lanes=True),), lanes=False)


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """A right operand of few columns in `buffer`, the steps of each side by side, so many of them
    `together`."""

    columns: Axis
    k_axis: Axis
    k_pack: int
    buffer: Buffer

    def place(self, column: Index) -> Index:
        """Of the first elements that lie together."""
        size = self.k_axis.extent * self.k_pack
        return column.scaled(size) + at(self.k_axis).scaled(self.k_pack)

    def loops(self, element: Element) -> list[Stmt]:
        """Filled by one task."""
        return [Loop(self.columns, self._fill_column(element), lanes=False)]

    def nests(self, element: Element) -> list[Nest]:
        """Filled by all."""
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
    """A right operand in strips, in `buffer`. `steps`: what its product adds up along, so many of
    them `together`."""

    panels: ColumnPanels
    k_axis: Axis
    k_pack: int
    buffer: Buffer

    def place(self, panels: ColumnPanels, first: Dim = 0) -> Index:
        """Of the first elements that lie together; `first`: the column where `strips` begin."""
        width, size = self.panels.width, self.k_axis.extent * self.k_pack
        offset = at(panels.outer).scaled(size * width) + at(panels.inner).scaled(self.k_pack)
        return (offset + at(self.k_axis).scaled(width * self.k_pack)).shifted(first * size)

    def loops(self, element: Element) -> list[Stmt]:
        """Filled by one task."""
        return [
            Loop(part.outer, self._fill_panel(element, part, first), lanes=False)
            for part, first in self._parts()
        ]

    def nests(self, element: Element) -> list[Nest]:
        """Filled by all."""
        why = f"{self.buffer.name}: {self.buffer.why}"
        weight = self.k_axis.extent * self.k_pack * self.panels.width
        return [
            Nest((part.outer,), (), self._fill_panel(element, part, first), (), weight, why)
            for part, first in self._parts()
        ]

    def _parts(self) -> Iterator[tuple[ColumnPanels, int]]:
        """Whole strips apart from what is left of one, each with its first column: only loops of
        one length are printed as squares (`targets/cpu/register_transpose.py`)."""
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
