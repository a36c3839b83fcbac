"""What is known at one place of a function: variables, tiles, masks, and what memory holds.

Every value is a tile of rows by lanes, of size 1 along an axis on which it does not depend.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hemstitch.ir.dims import (
    Choice,
    Dim,
    Factor,
    Quotient,
    Remainder,
    divides,
    may_be_negative,
    symbols,
    text_of,
)
from hemstitch.kernel_ir.index import Axis, AxisPart, Computed, Index, at
from hemstitch.kernel_ir.nodes import THREADS, Buffer
from hemstitch.targets.gpu.writer import Writer

ZERO = "zero"  # a tile of one element: makes any index a tile
Key = tuple[Hashable, ...]
_Named = TypeVar("_Named", bound=Hashable)


def _factor_text(factor: Factor) -> str:
    """Of negative numbers Triton's division truncates, and sizes are floors."""
    match factor:
        case Quotient(numerator, denominator) | Remainder(numerator, denominator):
            parts = text_of(numerator, _factor_text), text_of(denominator, _factor_text)
            is_rest = isinstance(factor, Remainder)
            if may_be_negative(numerator):
                return f"device.{'rest' if is_rest else 'quotient'}_of_size({', '.join(parts)})"
            return ("(({})%({}))" if is_rest else "(({})//({}))").format(*parts)
        case Choice(function, choices):
            return f"{function}({', '.join(text_of(choice, _factor_text) for choice in choices)})"
    return str(factor)


@dataclass(frozen=True, slots=True)
class TileValue:
    """Text safe to put operators around, and the axes of the tile along which it varies."""

    text: str
    rows: bool = False
    lanes: bool = False

    def along(self, other: TileValue) -> TileValue:
        return TileValue(self.text, self.rows or other.rows, self.lanes or other.lanes)


@dataclass(frozen=True, slots=True)
class Tile:
    """The lanes of the loop being printed: its axis, the index of the first one (None: zero), how
    many, and which of them exist."""

    axis: Axis
    first: str | None
    size: int
    mask: str | None


@dataclass(slots=True)
class TritonScope:
    """`buffers` and `sizes`: those that the function turned out to need, in order."""

    rows: int  # of a tile
    needs_64_bits: bool  # of indices
    writer: Writer = field(default_factory=Writer)
    buffers: dict[Buffer, None] = field(default_factory=dict)
    sizes: dict[str, None] = field(default_factory=dict)
    names: dict[str, TileValue] = field(default_factory=dict)
    axes: dict[Axis, TileValue] = field(default_factory=dict)
    known: list[dict[Key, TileValue]] = field(default_factory=lambda: [{}])
    tile: Tile | None = None
    in_rows: bool = False
    row_mask: str | None = None
    suffix: str = ""  # of variables that hold a statement's value in a tile of another shape

    # --- what has been computed

    def find(self, key: Key) -> TileValue | None:
        return next((scope[key] for scope in reversed(self.known) if key in scope), None)

    def define(self, name: str, key: Key, value: TileValue) -> None:
        """`name` holds `value`: a variable of its own, unless the same is known by another."""
        equal = self.find(key)
        if equal is None:
            variable = name + self.suffix
            self.writer.line(f"{variable} = {value.text}")
            equal = self.known[-1][key] = TileValue(variable, value.rows, value.lanes)
        self.names[name] = equal

    def forget(self, buffers: Iterable[Buffer]) -> None:
        """What memory held before it was overwritten."""
        gone = {buffer.name for buffer in buffers}
        for scope in self.known:
            for key in [key for key in scope if key[0] == "load" and key[1] in gone]:
                del scope[key]

    @contextmanager
    def block(self, head: str, written: Iterable[Buffer]) -> Iterator[None]:
        """A loop: what it writes is unknown from its start, what it computes unknown at its end."""
        self.forget(written)
        self.known.append({})
        with self.writer.block(head):
            yield
        self.known.pop()
        self.forget(written)

    @contextmanager
    def accumulator_rows(self, rows: int) -> Iterator[None]:
        """Where tiles have one row: what is known does not depend on those that they have here, and
        what becomes known here is forgotten."""
        before = (self.rows, self.row_mask, self.names, self.axes, self.known)
        self.rows, self.row_mask = rows, None
        self.names, self.axes = _uniform_in_rows(self.names), _uniform_in_rows(self.axes)
        self.known = [_uniform_in_rows(known) for known in self.known]
        yield
        self.rows, self.row_mask, self.names, self.axes, self.known = before

    # --- sizes and indices

    def size(self, size: Dim) -> str:
        """A size as text; the symbols in it become arguments."""
        if size == THREADS:
            return "programs"
        for name in sorted(symbols(size)):
            if name != "threads":
                self.sizes[name] = None
        text = text_of(size, _factor_text).replace("threads", "programs")
        return text if isinstance(size, int) or text.isidentifier() else f"({text})"

    def index(self, index: Index) -> TileValue:
        """A tile of positions."""
        parts: list[str] = []
        result = TileValue("")
        for variable, coefficient in index.terms:
            value = self._variable(variable)
            result = result.along(value)
            factor = self.size(coefficient)
            parts.append(value.text if coefficient == 1 else f"{factor} * {value.text}")
        if index.constant != 0:
            parts.append(self.size(index.constant))
        if not (result.rows or result.lanes):
            parts.insert(0, ZERO)
        return TileValue(" + ".join(parts).replace("+ -", "- "), result.rows, result.lanes)

    def _variable(self, variable: object) -> TileValue:
        if isinstance(variable, Computed):
            return self.names[variable.name]
        if isinstance(variable, AxisPart):
            return self._part(variable)
        assert isinstance(variable, Axis), "windows are expanded before"
        return self.axes[variable]

    def _part(self, part: AxisPart) -> TileValue:
        whole = self.axes[part.axis]
        text = whole.text if part.step == 1 else f"{whole.text} // {part.step}"
        if part.step * part.extent != part.axis.extent:
            text += f" % {part.extent}"
        return TileValue(f"({text})", whole.rows, whole.lanes)

    # --- lanes

    def range_of(self, size: int) -> str:
        """The first `size` lanes."""
        return f"tl.arange(0, {size})[None, :]{'.to(tl.int64)' if self.needs_64_bits else ''}"

    def lanes(self, size: int) -> str:
        """The same text for all tiles of one size: what one loop made, another one finds."""
        text = self.range_of(size)
        if self.find(("lanes", size)) is None:
            self.define(f"lane{size}", ("lanes", size), TileValue(text, lanes=True))
        return f"lane{size}"

    def exists(self, axis: Axis, name: str, size: int) -> str | None:
        """Which lanes are below the axis' extent, and inside the whole axis where it was cut."""
        conditions = []
        if axis.extent == 0 or not divides(size, axis.extent):
            conditions.append(f"({name} < {self.size(axis.extent)})")
        if (
            axis.outer is not None
            and axis.limit is not None
            and not divides(axis.extent, axis.limit)
        ):
            whole = self.index(at(axis.outer).scaled(axis.extent) + at(axis))
            conditions.append(f"({whole.text} < {self.size(axis.limit)})")
        return " & ".join(conditions) or None

    # --- masks

    def mask(self, value: TileValue, condition: TileValue | None = None) -> str | None:
        """Where the elements of a tile like `value` exist, and `condition` holds."""
        parts = [condition.text] if condition is not None else []
        if value.rows and self.row_mask is not None:
            parts.append(self.row_mask)
        if value.lanes and self.tile is not None and self.tile.mask is not None:
            parts.append(self.tile.mask)
        return " & ".join(parts) if parts else None

    def size_of(self, value: TileValue) -> tuple[int, int]:
        """Rows and lanes of a tile."""
        lanes = self.tile.size if value.lanes and self.tile is not None else 1
        return (self.rows if value.rows else 1, lanes)

    def shape(self, value: TileValue) -> str:
        return str(list(self.size_of(value)))

    @property
    def here(self) -> TileValue:
        """A value that may vary along all there is: rows inside them, lanes inside a tile."""
        return TileValue("", self.in_rows, self.tile is not None)


def _uniform_in_rows(values: Mapping[_Named, TileValue]) -> dict[_Named, TileValue]:
    return {key: replace(value, rows=False) for key, value in values.items()}
