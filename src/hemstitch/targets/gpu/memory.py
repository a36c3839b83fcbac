"""Loads and stores of tiles, and the barriers between threads of a program that they need."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from hemstitch.errors import InternalError
from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    AccumulateInto,
    Buffer,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.targets.gpu.scope import TileValue, TritonScope
from hemstitch.targets.gpu.tiling import is_tile
from hemstitch.targets.gpu.triton_types import NAMES

BARRIER = "tl.debug_barrier()"


@dataclass(slots=True)
class MemoryPrinter:
    """`conflicting`: buffers whose elements one thread may write and another read in one row.
    `row_buffers`: what each row keeps for itself, of which a program has one copy."""

    scope: TritonScope
    conflicting: Container[Buffer]
    row_buffers: Container[Buffer]
    stored: set[Buffer] = field(default_factory=set)
    loaded: set[Buffer] = field(default_factory=set)

    @property
    def dead(self) -> set[Buffer]:
        """Row buffers that nothing reads: their values stayed in registers."""
        return {b for b in self.stored if b.role is Role.TASK and b not in self.loaded}

    @property
    def in_memory(self) -> set[Buffer]:
        """A row's own buffers that something reads: one row at a time has the copy."""
        return {buffer for buffer in self.loaded if buffer in self.row_buffers}

    def load(self, load: Load) -> None:
        scope, buffer = self.scope, load.buffer
        address = self._address(buffer, load.index)
        condition = None if load.mask is None else scope.names[load.mask]
        shaped = address if condition is None else address.along(condition)
        key = ("load", buffer.name, address.text, condition, scope.mask(shaped))
        known = scope.find(key)
        if known is not None:
            scope.names[load.name] = known
            return
        self.loaded.add(buffer)
        if buffer in self.stored or buffer in self.conflicting:
            scope.writer.line(BARRIER)
        scope.define(load.name, key, self.load_expression(buffer, address, condition))

    def load_expression(
        self, buffer: Buffer, address: TileValue, condition: TileValue | None = None
    ) -> TileValue:
        """The expression that loads a tile: zero where it does not exist."""
        scope = self.scope
        scope.buffers[buffer] = None
        shaped = address if condition is None else address.along(condition)
        text = self._pointer(buffer, address)
        if (shaped.rows, shaped.lanes) != (address.rows, address.lanes):
            text += f" + tl.zeros({scope.shape(shaped)}, tl.int32)"
        mask = scope.mask(shaped, condition)
        text = f"tl.load({text}{f', mask={mask}, other=0' if mask else ''})"
        if buffer.dtype.compute is not buffer.dtype:
            text += f".to({NAMES[buffer.dtype.compute]})"
        return TileValue(text, shaped.rows, shaped.lanes)

    def store(self, store: Store) -> None:
        scope, buffer = self.scope, store.buffer
        address, value = self._address(buffer, store.index), scope.names[store.value]
        if buffer in self.conflicting:
            scope.writer.line(BARRIER)
        self.store_tile(buffer, address, value)
        scope.forget((buffer,))
        if buffer.dtype.compute is buffer.dtype:
            key = ("load", buffer.name, address.text, None, scope.mask(address))
            scope.known[-1][key] = value

    def store_tile(self, buffer: Buffer, address: TileValue, value: TileValue) -> None:
        scope = self.scope
        if scope.size_of(value.along(address)) != scope.size_of(address):
            raise InternalError(f"{buffer.name}[{address.text}] cannot hold a tile of {value.text}")
        scope.buffers[buffer] = None
        self.stored.add(buffer)
        text = value.text
        if buffer.dtype.compute is not buffer.dtype:
            text += f".to({NAMES[buffer.dtype]})"
        mask = scope.mask(address)
        line = (
            f"tl.store({self._pointer(buffer, address)}, {text}{f', mask={mask}' if mask else ''})"
        )
        scope.writer.line(line, stores=buffer)

    def add_atomically(self, buffer: Buffer, address: TileValue, value: TileValue) -> None:
        """In one step with what other programs add to the same elements; in any order, since only
        a later phase reads the sums. Every row of the tile adds, be it to the same place."""
        self._add(buffer, address, value.text, TileValue("", rows=True, lanes=True))

    def add_to_own(self, buffer: Buffer, address: TileValue, text: str) -> None:
        """To what no other program adds to: always the same thread does, so that the order is that
        of the rows."""
        self._add(buffer, address, text, address)

    def _add(self, buffer: Buffer, address: TileValue, text: str, tile: TileValue) -> None:
        """`tile`: along what it has elements."""
        scope = self.scope
        scope.buffers[buffer] = None
        self.stored.add(buffer)
        place = self._pointer(buffer, address)
        if scope.size_of(address) != scope.size_of(tile):
            place += f" + tl.zeros({scope.shape(tile)}, tl.int32)"
        mask = scope.mask(tile)
        masked = f", mask={mask}" if mask else ""
        line = f'tl.atomic_add({place}, {text}{masked}, sem="relaxed")'
        scope.writer.line(line, stores=buffer)

    def _address(self, buffer: Buffer, index: Index) -> TileValue:
        address = self.scope.index(index)
        has_rows = buffer in self.row_buffers and self.scope.rows > 1
        return TileValue(address.text, address.rows or has_rows, address.lanes)

    def _pointer(self, buffer: Buffer, address: TileValue) -> str:
        task_offset = ""
        if buffer.role is Role.TASK:
            task_offset = f"program * {self.scope.size(buffer.size)} + "
        return f"{buffer.name} + {task_offset}{address.text}"


def row_buffers(nest: Nest) -> set[Buffer]:
    """Buffers of a task that its rows write: not what it prepares before the first one."""
    stores = [s for s in walk(nest.body) if isinstance(s, (Store, AccumulateInto))]
    buffers = {s.buffer for s in stores}
    buffers |= {s.positions for s in stores if isinstance(s, AccumulateInto) and s.positions}
    return {buffer for buffer in buffers if buffer.role is Role.TASK}


def conflicting(nest: Nest) -> set[Buffer]:
    """Buffers that a row reads and writes at more than one place, or at one that all threads read
    and one of them writes: where it is in no tile of lanes, or the same in all of them."""
    places: dict[Buffer, set[tuple[Index, Axis | None]]] = {}
    written: set[Buffer] = set()
    shared: set[Buffer] = set()
    for statement, lanes in _accesses((*nest.prologue, *nest.body), None):
        places.setdefault(statement.buffer, set()).add((statement.index, lanes))
        if isinstance(statement, Store | AccumulateInto):
            written.add(statement.buffer)
        elif lanes is None or statement.index.coefficient(lanes) == 0:
            shared.add(statement.buffer)
    outputs = (b for b in written if b.role is Role.OUTPUT)
    return {b for b in outputs if len(places[b]) > 1 or b in shared}


def _accesses(
    statements: Iterable[Stmt], lanes: Axis | None
) -> Iterator[tuple[Load | Store | AccumulateInto, Axis | None]]:
    """With the lanes of the tile that each is in."""
    for statement in statements:
        if isinstance(statement, Load | Store | AccumulateInto):
            yield statement, lanes
        elif isinstance(statement, Loop) and lanes is None and is_tile(statement):
            yield from _accesses(statement.body, statement.axis)
        elif isinstance(statement, BLOCKS):
            yield from _accesses(statement.body, lanes)
