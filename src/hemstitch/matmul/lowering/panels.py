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
class PackedPanels:
    """Columns cut into `outer` strips of `inner`, the last of which may have fewer."""

    outer: Axis
    inner: Axis

    @staticmethod
    def of(columns: Axis, width: int) -> PackedPanels:
        """As wide as that, or one vector of the widest where there are no more columns."""
        extent = columns.extent
        width = (
            CPU.narrow_columns
            if isinstance(extent, int) and extent <= CPU.narrow_columns
            else width
        )
        outer = Axis(f"{columns.name}s", quotient(extent + (width - 1), width))
        return PackedPanels(outer, Axis(f"{columns.name}i", width, outer, extent))

    @property
    def width(self) -> int:
        assert isinstance(self.inner.extent, int)
        return self.inner.extent

    def column(self) -> Index:
        """Which of all."""
        return at(self.outer).scaled(self.width) + at(self.inner)

    def loop(self, columns: Axis, body: Sequence[Stmt]) -> Loop:
        """`body` in each of `columns`, strip after strip."""
        cut = Rewriter({}, lambda index: index.substitute({columns: self.column()}))
        inside = tuple(cut.statement(statement) for statement in body)
        return Loop(self.outer, (Loop(self.inner, inside, lanes=True),), lanes=False)


@dataclass(frozen=True, slots=True)
class Columns:
    """A right operand of few columns in `buffer`, the steps of each side by side, so many of them
    `together`."""

    columns: Axis
    steps: Axis
    together: int
    buffer: Buffer

    def place(self, column: Index) -> Index:
        """Of the first elements that lie together."""
        size = self.steps.extent * self.together
        return column.scaled(size) + at(self.steps).scaled(self.together)

    def loops(self, element: Element) -> list[Stmt]:
        """Filled by one task."""
        return [Loop(self.columns, self._steps(element), lanes=False)]

    def nests(self, element: Element) -> list[Nest]:
        """Filled by all."""
        why = f"{self.buffer.name}: {self.buffer.why}"
        weight = self.steps.extent * self.together
        return [Nest((self.columns,), (), self._steps(element), (), weight, why)]

    def _steps(self, element: Element) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        stored: list[Stmt] = []
        for step in range(self.together):
            value, body = element(at(self.columns), 0, step)
            made += body
            place = self.place(at(self.columns)).shifted(step)
            stored.append(Store(self.buffer, place, value))
        return (Loop(self.steps, (*made, *stored), lanes=True),)


@dataclass(frozen=True, slots=True)
class Panel:
    """A right operand in strips, in `buffer`. `steps`: what its product adds up along, so many of
    them `together`."""

    strips: PackedPanels
    steps: Axis
    together: int
    buffer: Buffer

    def place(self, strips: PackedPanels, first: Dim = 0) -> Index:
        """Of the first elements that lie together; `first`: the column where `strips` begin."""
        width, size = self.strips.width, self.steps.extent * self.together
        strip = at(strips.outer).scaled(size * width) + at(strips.inner).scaled(self.together)
        return (strip + at(self.steps).scaled(width * self.together)).shifted(first * size)

    def loops(self, element: Element) -> list[Stmt]:
        """Filled by one task."""
        return [
            Loop(run.outer, self._strip(element, run, first), lanes=False)
            for run, first in self._runs()
        ]

    def nests(self, element: Element) -> list[Nest]:
        """Filled by all."""
        why = f"{self.buffer.name}: {self.buffer.why}"
        weight = self.steps.extent * self.together * self.strips.width
        return [
            Nest((run.outer,), (), self._strip(element, run, first), (), weight, why)
            for run, first in self._runs()
        ]

    def _runs(self) -> Iterator[tuple[PackedPanels, int]]:
        """Whole strips apart from what is left of one, each with its first column: only loops of
        one length are printed as squares (`targets/cpu/register_transpose.py`)."""
        width, columns = self.strips.width, self.strips.inner.limit
        if not isinstance(columns, int):
            yield self.strips, 0
            return
        whole, rest = divmod(columns, width)
        if whole:
            outer = Axis(self.strips.outer.name, whole)
            yield PackedPanels(outer, Axis(self.strips.inner.name, width)), 0
        if rest:
            inner = Axis(self.strips.inner.name, rest)
            yield PackedPanels(Axis(self.strips.outer.name, 1), inner), whole * width

    def _strip(self, element: Element, run: PackedPanels, first: int) -> tuple[Stmt, ...]:
        column = at(run.outer).scaled(self.strips.width) + at(run.inner)
        made: list[Stmt] = []
        stored: list[Stmt] = []
        for step in range(self.together):
            value, body = element(column.shifted(first), first // self.strips.width, step)
            made += body
            stored.append(Store(self.buffer, self.place(run, first).shifted(step), value))
        lanes = Loop(run.inner, (*made, *stored), lanes=True)
        return (Loop(self.steps, (lanes,), lanes=False),)
