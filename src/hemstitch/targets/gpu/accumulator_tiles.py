"""Accumulators: tiles that are combined element by element, and along their lanes at the end."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import highest, identity
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateInto,
    Buffer,
    Finish,
    Init,
    Load,
    Loop,
    Nest,
    Role,
    Running,
    Scan,
    Store,
    walk,
)
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu import tile_reductions
from hemstitch.targets.gpu.elementwise import apply
from hemstitch.targets.gpu.memory import BARRIER, MemoryPrinter
from hemstitch.targets.gpu.register_accumulators import RegisterAccumulator
from hemstitch.targets.gpu.scope import TileValue, TritonScope
from hemstitch.targets.gpu.tiling import Tiling, is_tile
from hemstitch.targets.gpu.triton_types import NAMES, literal

ROWS, LANES = 0, 1  # the axes of a tile
VECTOR = GPU.access_bytes // DType.F32.bytes  # elements that a thread loads at once


@dataclass(slots=True)
class _TritonAccumulator:
    """A reduction under way: a variable (two for ARGMAX), or after a single tile that tile.
    `combines`: its lanes are combined at the end. `is_running`: they are in every tile."""

    op: Op
    dtype: DType
    combines: bool
    is_single: bool
    parts: list[str]
    rows: bool
    is_running: bool = False
    running_max: str | None = None


@dataclass(slots=True)
class Reductions:
    """What the accumulators of one nest print."""

    scope: TritonScope
    tiling: Tiling
    memory: MemoryPrinter
    running: Container[str]  # accumulators that are read, or counted from, before they are finished
    own_sums: Set[Buffer]
    row_counts: Mapping[str, int]  # of accumulators that have several rows, for as many terms
    open: dict[str, _TritonAccumulator] = field(default_factory=dict)

    def accumulators_of(self, loop: Loop) -> int:
        """How many iterations of a loop that only reduces go side by side."""
        added = (s.accumulator for s in loop.body if isinstance(s, Accumulate))
        return max((self.row_counts.get(name, 1) for name in added), default=1)

    def init(self, init: Init, loops: Sequence[Loop]) -> None:
        """`loops`: those between here and the place where it is added to."""
        scope = self.scope
        if init.columns is not None or init.running_max is not None or init.name in self.running:
            self._init_running(init)
            return
        tile = next((loop for loop in loops if scope.tile is None and is_tile(loop)), None)
        lanes = self.tiling.lanes[tile.axis] if tile is not None else None
        is_single = lanes is not None and lanes.whole and len(loops) == 1
        parts = (
            [init.name] if init.op not in tile_reductions.ARG else [init.name, f"{init.name}_at"]
        )
        held = _TritonAccumulator(
            init.op, init.dtype, tile is not None, is_single, parts, scope.in_rows
        )
        self.open[init.name] = held
        if is_single:
            return
        size = lanes.size if lanes is not None else scope.tile.size if scope.tile else 1
        for part, (value, dtype) in zip(parts, _identity_values(init.op, init.dtype)):
            rows = self.row_counts.get(init.name) or (self.tiling.rows if scope.in_rows else 1)
            scope.writer.line(f"{part} = tl.full([{rows}, {size}], {value}, {dtype})")

    def _init_running(self, init: Init) -> None:
        """One value a row, or one for each of its columns."""
        scope = self.scope
        size = 1 if init.columns is None else self.tiling.lanes[init.columns].size
        ((value, dtype),) = _identity_values(init.op, init.dtype)
        shape = f"[{scope.rows if scope.in_rows else 1}, {size}]"
        scope.writer.line(f"{init.name} = tl.full({shape}, {value}, {dtype})")
        self.open[init.name] = _TritonAccumulator(
            *(init.op, init.dtype, False, False, [init.name], scope.in_rows),
            is_running=True,
            running_max=init.running_max,
        )

    def running_value(self, running: Running) -> None:
        self.scope.writer.line(f"{running.name} = {running.accumulator}")
        held = self.open[running.accumulator]
        self.scope.names[running.name] = TileValue(running.name, rows=held.rows)

    def _accumulate_running(self, held: _TritonAccumulator, name: str, tile: str) -> None:
        """What follows is made relative to the new maximum; nothing was counted from -inf."""
        write = self.scope.writer.line
        followers = [
            follower
            for follower, accumulator in self.open.items()
            if accumulator.running_max == name
        ]
        if followers:
            write(f"{name}_old = {name}")
        new = tile_reductions.along(held.op, held.dtype, tile, LANES)
        write(f"{name} = {tile_reductions.combine(held.op, held.dtype, name, new)}")
        if followers:
            write(f"{name}_scale = {apply(Op.EXP, held.dtype, f'{name}_old - {name}')}")
            write(f'{name}_none = {name}_old == float("-inf")')
        for follower in followers:
            write(f"{follower} = tl.where({name}_none, 0.0, {follower} * {name}_scale)")

    def accumulate(self, statement: Accumulate) -> None:
        scope = self.scope
        held = self.open[statement.accumulator]
        values = [scope.names[statement.value]]
        if statement.position is not None:
            at = scope.index(statement.position)
            values.append(TileValue(f"({at.text}).to(tl.int64)", at.rows, at.lanes))
        elif statement.order is not None:
            values.append(scope.names[statement.order])
        is_lanes = scope.tile is not None
        texts = [
            self._masked_tile(
                value, start, lanes=is_lanes, rows=statement.accumulator in self.row_counts
            )
            for value, (start, _) in zip(values, _identity_values(held.op, held.dtype))
        ]
        if held.op in tile_reductions.ARG:
            texts = self._of_equal_shape(values, texts)
        if held.is_running:
            self._accumulate_running(held, statement.accumulator, texts[0])
        elif held.is_single:
            held.parts, held.rows = texts, any(value.rows for value in values)
        else:
            scope.writer.line(_combined(held.op, held.dtype, held.parts, texts))

    def scan(self, scan: Scan) -> None:
        """A tile by itself, and on top of what those before it came to."""
        held, write = self.open[scan.accumulator], self.scope.writer.line
        value = self.scope.names[scan.value]
        ((nothing, _),) = _identity_values(held.op, held.dtype)
        tile = f"{scan.name}_tile"
        write(f"{tile} = {self._masked_tile(value, nothing, lanes=True, rows=False)}")
        before = tile_reductions.combine(
            held.op,
            held.dtype,
            scan.accumulator,
            tile_reductions.scanned(held.op, held.dtype, tile),
        )
        write(f"{scan.name} = {before}")
        total = tile_reductions.along(held.op, held.dtype, tile, LANES)
        total = tile_reductions.combine(held.op, held.dtype, scan.accumulator, total)
        write(f"{scan.accumulator} = {total}")
        self.scope.names[scan.name] = TileValue(scan.name, held.rows, lanes=True)

    def finish(self, finish: Finish) -> None:
        scope = self.scope
        held = self.open.pop(finish.accumulator)
        rows, lanes = held.rows, scope.tile is not None
        along = LANES if held.combines else ROWS if finish.accumulator in self.row_counts else None
        if held.op in tile_reductions.ARG:
            text = ", ".join(held.parts)
            if along is not None:
                text = tile_reductions.pairs_along(held.op, held.parts, along)
            position = finish.position_name or f"{finish.name}_at"
            scope.writer.line(f"{finish.name}, {position} = {text}")
            scope.names |= {name: TileValue(name, rows, lanes) for name in (finish.name, position)}
            return
        text = held.parts[0]
        if along is not None:
            text = tile_reductions.along(held.op, held.dtype, text, along)
        if text == held.parts[0] and not held.is_single:
            scope.names[finish.name] = TileValue(text, rows, lanes)  # a variable of its own already
        else:
            scope.define(finish.name, ("let", text), TileValue(text, rows, lanes))

    def _masked_tile(self, value: TileValue, start: str, *, lanes: bool, rows: bool) -> str:
        """A whole tile of `value` along what is asked for, neutral where the tile has no such
        element. Each row has what does not depend on rows."""
        scope = self.scope
        mask = scope.mask(TileValue("", rows, lanes))
        text = value.text if mask is None else f"tl.where({mask}, {value.text}, {start})"
        is_masked = lanes and scope.tile is not None and scope.tile.mask is not None
        along_rows = value.rows or (rows and scope.row_mask is not None)
        varying = TileValue("", along_rows, value.lanes or is_masked)
        full = TileValue("", value.rows or rows, value.lanes or lanes)
        return text if varying == full else f"tl.broadcast_to({text}, {scope.shape(full)})"

    def _of_equal_shape(self, values: Sequence[TileValue], texts: Sequence[str]) -> list[str]:
        """A reduction of pairs takes two tiles of the same size."""
        scope = self.scope
        whole = TileValue("", any(v.rows for v in values), scope.tile is not None)
        shape = scope.shape(whole)
        return [
            text
            if scope.size_of(value.along(TileValue("", False, whole.lanes))) == scope.size_of(whole)
            else f"tl.broadcast_to({text}, {shape})"
            for value, text in zip(values, texts)
        ]

    # --- accumulators in memory

    def accumulate_into(self, statement: AccumulateInto) -> None:
        """Read, combine, write; rows that share the place are combined before."""
        scope, memory = self.scope, self.memory
        address = scope.index(statement.index)
        if statement.atomic:
            memory.add_atomically(statement.buffer, address, scope.names[statement.value])
            return
        op, dtype = statement.op, statement.dtype
        buffers = [statement.buffer]
        values = [scope.names[statement.value]]
        if statement.positions is not None and statement.order is not None:
            buffers.append(statement.positions)
            values.append(scope.names[statement.order])
        texts = self._over_rows(op, dtype, values, address)
        if (
            statement.buffer in self.own_sums
            and prod(scope.size_of(address)) <= GPU.atomic_elements
        ):
            memory.add_to_own(statement.buffer, address, texts[0])
            return
        scope.writer.line(BARRIER)  # the place may be another thread's of the row before
        old_values = [memory.load_expression(buffer, address).text for buffer in buffers]
        names = [f"sum_{buffer.name}" for buffer in buffers]
        for name, old in zip(names, old_values):
            scope.writer.line(f"{name} = {old}")
        scope.writer.line(_combined(op, dtype, names, texts))
        for buffer, name in zip(buffers, names):
            memory.loaded.add(buffer)
            memory.store_tile(buffer, address, TileValue(name, address.rows, address.lanes))
        scope.writer.line(BARRIER)
        scope.forget(buffers)

    def _over_rows(
        self, op: Op, dtype: DType, values: list[TileValue], address: TileValue
    ) -> list[str]:
        """What all rows of the tile add to a place that does not depend on the row."""
        if self.tiling.rows == 1 or address.rows:
            return [value.text for value in values]
        return self._rows_combined(op, dtype, self._of_all_rows(op, dtype, values, address))

    def _of_all_rows(
        self, op: Op, dtype: DType, values: list[TileValue], address: TileValue
    ) -> list[str]:
        return [
            self._masked_tile(value, start, lanes=address.lanes, rows=True)
            for value, (start, _) in zip(values, _identity_values(op, dtype))
        ]

    def _rows_combined(self, op: Op, dtype: DType, parts: Sequence[str]) -> list[str]:
        if op in tile_reductions.ARG:
            names = [f"rows_{len(self.scope.names)}", f"rows_{len(self.scope.names)}_at"]
            self.scope.writer.line(
                f"{', '.join(names)} = {tile_reductions.pairs_along(op, parts, ROWS)}"
            )
            return names
        return [tile_reductions.along(op, dtype, parts[0], ROWS)]

    # --- accumulators that are carried over all rows

    def start_in_registers(self, accumulator: RegisterAccumulator) -> None:
        statement, lanes = accumulator.statement, self._lanes_of(accumulator)
        for name, (value, dtype) in zip(
            accumulator.names, _identity_values(statement.op, statement.dtype)
        ):
            shape = f"[{self.tiling.rows if self._has_rows(accumulator) else 1}, {lanes}]"
            self.scope.writer.line(f"{name} = tl.full({shape}, {value}, {dtype})")

    def accumulate_in_registers(self, accumulator: RegisterAccumulator) -> None:
        scope, statement = self.scope, accumulator.statement
        address = scope.index(statement.index)
        values = [scope.names[statement.value]]
        if statement.order is not None:
            values.append(scope.names[statement.order])
        combined = self._of_all_rows if self._has_rows(accumulator) else self._over_rows
        texts = combined(statement.op, statement.dtype, values, address)
        scope.writer.line(_combined(statement.op, statement.dtype, list(accumulator.names), texts))

    def store_from_registers(self, accumulator: RegisterAccumulator) -> None:
        statement = accumulator.statement
        address, parts = self.scope.index(statement.index), list(accumulator.names)
        if self._has_rows(accumulator):
            parts = self._rows_combined(statement.op, statement.dtype, parts)
        for buffer, part in zip(accumulator.buffers, parts):
            self.memory.store_tile(buffer, address, TileValue(part, False, address.lanes))

    def _has_rows(self, accumulator: RegisterAccumulator) -> bool:
        """Where a tile's rows are different threads', which would have to meet for each tile."""
        is_narrow = self._lanes_of(accumulator) < VECTOR * GPU.warp_threads * self.tiling.warps
        return self.tiling.rows > 1 and is_narrow

    def _lanes_of(self, accumulator: RegisterAccumulator) -> int:
        axis = accumulator.axis
        if axis is None or accumulator.statement.index.coefficient(axis) == 0:
            return 1
        return self.tiling.lanes[axis].size


def own_sums(nest: Nest) -> set[Buffer]:
    """What memory can add to by itself, with nobody waiting for what was there: filled before the
    first row, and nothing in a row writes or reads it, nor does another program add to it."""
    everything = list(walk(nest.body))
    touched = {s.buffer for s in everything if isinstance(s, Load | Store)}
    sums = [s for s in everything if isinstance(s, AccumulateInto) and not s.atomic]
    floats = {s.buffer for s in sums if s.op is Op.SUM and s.dtype in (DType.F32, DType.F64)}
    return {buffer for buffer in floats - touched if buffer.role is Role.SHARED}


def _identity_values(op: Op, dtype: DType) -> list[tuple[str, str]]:
    """(value, type) of what an accumulator's parts hold before anything is added."""
    held = [(literal(identity(op, dtype), dtype), NAMES[dtype.compute])]
    if op in tile_reductions.ARG:
        held.append((literal(highest(DType.I64), DType.I64), "tl.int64"))
    return held


def _combined(op: Op, dtype: DType, parts: Sequence[str], new: Sequence[str]) -> str:
    """The statement that adds `new` to an accumulator."""
    if op in tile_reductions.ARG:
        return f"{', '.join(parts)} = {tile_reductions.ARG[op]}({', '.join([*parts, *new])})"
    return f"{parts[0]} = {tile_reductions.combine(op, dtype, parts[0], new[0])}"
