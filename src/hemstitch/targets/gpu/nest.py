"""One nest as a Triton function: nest(program, programs, buffers, sizes).

What a row has loaded or computed stays known, by its text, for as long as nothing overwrites it: so
a later loop over the same lanes finds it in registers, and a row buffer that only such loops read
is never stored at all (AStitch's local and regional schemes, and its hierarchical reuse).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from typing_extensions import assert_never

from hemstitch.ir.dims import Dim, divides, product
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.index import Axis
from hemstitch.kernel_ir.nodes import (
    TASK,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Buffer,
    Check,
    Constant,
    Contract,
    Finish,
    Init,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Role,
    Running,
    Scan,
    Stmt,
    Store,
    walk,
)
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.targets.gpu import half_rounding, memory, philox_tiles, triton_types
from hemstitch.targets.gpu.accumulator_tiles import Reductions, own_sums
from hemstitch.targets.gpu.elementwise import apply
from hemstitch.targets.gpu.function_merging import parameters_of, select_by_number
from hemstitch.targets.gpu.load_hoisting import hoistable_loads
from hemstitch.targets.gpu.matmul_tiles import MatmulPrinter
from hemstitch.targets.gpu.multiple_accumulators import multiple_accumulators
from hemstitch.targets.gpu.register_accumulators import RegisterAccumulator, register_accumulators
from hemstitch.targets.gpu.scope import ZERO, Tile, TileValue, TritonScope
from hemstitch.targets.gpu.tiling import Tiling, is_tile, only_reduces


@dataclass(slots=True)
class TritonNestPrinter:
    """`shift`: tiles of the nests before this one in its phase. `is_alone`: one program has all.
    `merged`: the buffers of all nests that the function is for, where there are several."""

    nest: Nest
    tiling: Tiling
    shift: Dim
    scope: TritonScope
    is_alone: bool
    merged: Sequence[tuple[Buffer, ...]] = ()
    memory: memory.MemoryPrinter = field(init=False)
    reductions: Reductions = field(init=False)
    matmuls: MatmulPrinter = field(init=False)
    in_registers: Mapping[Buffer, RegisterAccumulator] = field(init=False)
    coarse: Set[str] = field(init=False)
    rounded: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        nest = self.nest
        self.memory = memory.MemoryPrinter(
            self.scope, memory.conflicting(nest), memory.row_buffers(nest)
        )
        running = _running(nest)
        counts = multiple_accumulators(nest, self.tiling, running)
        sums = own_sums(nest)
        self.reductions = Reductions(self.scope, self.tiling, self.memory, running, sums, counts)
        self.matmuls = MatmulPrinter(self.scope, self.tiling)
        self.in_registers = register_accumulators(self.nest, self.tiling)
        self.coarse = half_rounding.only_rounded_values(nest)
        self.rounded = half_rounding.roundings(nest, self.coarse)

    def print(self) -> list[str]:
        """The lines of the function's body."""
        scope, writer = self.scope, self.scope.writer
        scope.axes[TASK] = TileValue("program")
        writer.line(f"{ZERO} = tl.zeros([1, 1], tl.int{64 if scope.needs_64_bits else 32})")
        for accumulator in self.in_registers.values():
            self.reductions.start_in_registers(accumulator)
        if self.is_alone or self._is_for_all_programs:
            self._rows()
        else:
            with scope.block(f"if {self._first()} < {scope.size(self.tiles)}:", ()):
                self._rows()
        return writer.text(self.memory.dead)

    def _rows(self) -> None:
        scope = self.scope
        self._statements(self.nest.prologue)
        if self.reductions.own_sums - self.in_registers.keys():
            scope.writer.line(memory.BARRIER)  # any thread may have filled what another one adds to
        tiles = scope.size(self.tiles)
        bounds = f"0, {tiles}" if self.is_alone else f"{self._first()}, {tiles}, programs"
        head = f"for {'turn' if self.merged else 'tile'} in tl.range({bounds}):"
        with scope.block(head, written(self.nest.body)):
            scope.in_rows = True
            if self.merged:
                self._select_merged_nest()
            self._decode()
            self._hoist_loads()
            self._statements(self.nest.body)
            if self.memory.in_memory:  # threads of the next row write what others still read
                scope.writer.line(memory.BARRIER)
            scope.in_rows = False
        assert not self.nest.epilogue, "sums of rows are carried in registers"
        scope.row_mask = None
        for accumulator in self.in_registers.values():
            self._store_register_accumulator(accumulator)

    def _hoist_loads(self) -> None:
        for loop, load in hoistable_loads(self.nest, self.tiling, self.memory.conflicting):
            if loop is None:
                self.memory.load(load)
            else:
                self._tile(loop, partial(self.memory.load, load))

    def _select_merged_nest(self) -> None:
        """Which nest it is for this time, and which of its tiles."""
        writer, tiles_of_nest = self.scope.writer, self.scope.size(self._own_tiles)
        writer.line(f"which = turn // {tiles_of_nest}")
        writer.line(f"tile = turn % {tiles_of_nest}")
        for buffer in self.merged[0]:
            names = [*parameters_of(buffer.name, len(self.merged))]
            writer.line(f"{buffer.name} = {select_by_number(names, 'which')}")

    @property
    def _is_for_all_programs(self) -> bool:
        """Programs without a row must run it too: others look for what it leaves."""
        everything = [*walk(self.nest.prologue), *walk(self.nest.body)]
        shared = (b for b in written(everything) if b.role is Role.SHARED)
        return not self.nest.prologue or any(True for _ in shared)

    @property
    def tiles(self) -> Dim:
        """How many tiles of rows there are, of all nests."""
        return self._own_tiles * max(1, len(self.merged))

    @property
    def _own_tiles(self) -> Dim:
        size, rows = self.tiling.rows, self.nest.rows
        if not self.tiling.is_aligned:
            return _tiles(product(axis.extent for axis in rows), size)
        return product(axis.extent for axis in rows[:-1]) * _tiles(rows[-1].extent, size)

    def _first(self) -> str:
        """The first tile of this program: tiles of all nests of a phase are dealt out in turn."""
        if self.shift == 0:
            return "program"
        return f"(program + programs - {self.scope.size(self.shift)} % programs) % programs"

    def _decode(self) -> None:
        """The row axes' indices from the tile's number, the last axis fastest."""
        rows = self.nest.rows
        if not rows:
            return
        if self.tiling.is_aligned:
            last = _tiles(rows[-1].extent, self.tiling.rows)
            size = self.scope.size(last)
            block, rest = ("", "tile") if last == 1 else (f"tile % {size}", f"tile // {size}")
            self._decode_last(block, rows[-1].extent)
            self.scope.axes[rows[-1]] = TileValue("row", rows=True)
            if rows[:-1]:
                self.scope.writer.line(f"outer = {rest}")
            self._decode_axes("outer", rows[:-1], is_tile=False)
        else:
            self._decode_last("tile", product(axis.extent for axis in rows))
            self._decode_axes("row", rows, is_tile=True)

    def _decode_last(self, tile: str, count: Dim) -> None:
        """The numbers of a tile's rows, and which of them exist. `tile`: empty for the only one."""
        scope, size = self.scope, self.tiling.rows
        within = f"tl.arange(0, {size})[:, None]" if size > 1 else ZERO
        wide = ".to(tl.int64)" if scope.needs_64_bits else ""
        if tile:
            first = f"({tile}){wide}" if "%" in tile else f"{tile}{wide}"
            scope.writer.line(f"row = {f'{size} * {first}' if size > 1 else first} + {within}")
        else:
            scope.writer.line(f"row = {within}{wide}")
        scope.row_mask = None
        if size > 1 and not divides(size, count):
            scope.writer.line(f"row_exists = row < {scope.size(count)}")
            scope.row_mask = "row_exists"

    def _decode_axes(self, rest: str, rows: Sequence[Axis], *, is_tile: bool) -> None:
        """`rest` numbers all combinations of `rows`; a tile, or the same for all rows of one."""
        scope = self.scope
        for axis, outer in zip(reversed(rows[1:]), reversed(rows[:-1])):
            extent = scope.size(axis.extent)
            scope.writer.line(f"row_{axis.name} = {rest} % {extent}")
            scope.axes[axis] = TileValue(f"row_{axis.name}", rows=is_tile)
            name = f"row_{outer.name}" if outer is rows[0] else f"rows_{outer.name}"
            scope.writer.line(f"{name} = {rest} // {extent}")
            rest = name
        if rows:
            scope.axes[rows[0]] = TileValue(rest, rows=is_tile)

    def _store_register_accumulator(self, accumulator: RegisterAccumulator) -> None:
        """After the last row, what was carried goes where the next phase looks for it."""
        statement = accumulator.statement
        if accumulator.axis is None:
            self.reductions.store_from_registers(accumulator)
        else:
            with_lanes = Loop(accumulator.axis, (statement,), lanes=True)
            self._tile(with_lanes, lambda: self.reductions.store_from_registers(accumulator))

    # --- statements

    def _statements(self, statements: Iterable[Stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Stmt) -> None:  # noqa: C901, PLR0912  a case a kind
        scope = self.scope
        match statement:
            case Let():
                self._let(statement)
            case Constant(name, value, dtype):
                written, name_of = triton_types.literal(value, dtype), triton_types.NAMES
                text = f"tl.full([1, 1], {written}, {name_of[dtype.compute]})"
                scope.define(name, ("constant", text), TileValue(text))
            case Position(name, index):
                position = scope.index(index)
                text = f"({position.text}).to(tl.int64)"
                scope.define(name, ("let", text), TileValue(text, position.rows, position.lanes))
            case Random(name, seed, index):
                drawn = philox_tiles.uniform(scope, scope.names[seed], index)
                scope.define(name, ("let", drawn.text), drawn)
            case Load():
                self.memory.load(statement)
            case Store(buffer):
                if buffer not in self.in_registers:  # what is carried starts in registers
                    self.memory.store(statement)
            case Init():
                loops = self._accumulates(statement.name) if statement.columns is None else []
                self.reductions.init(statement, loops)
            case Accumulate():
                self.reductions.accumulate(statement)
            case Running():
                self.reductions.running_value(statement)
            case Scan():
                self.reductions.scan(statement)
            case Finish():
                self.reductions.finish(statement)
            case AccumulateInto(buffer):
                if buffer in self.in_registers:
                    self.reductions.accumulate_in_registers(self.in_registers[buffer])
                else:
                    self.reductions.accumulate_into(statement)
            case Check(condition, failure):
                self._check(scope.names[condition], failure)
            case Loop():
                self._loop(statement)
            case Contract():
                self.matmuls.contract(statement, self._statements)
            case AccumulateMatmul():
                self.matmuls.accumulate(statement, self._statements)
            case _:
                assert_never(statement)

    def _let(self, let: Let) -> None:
        operands = [self.scope.names[name] for name in let.operands]
        result = TileValue("")
        for operand in operands:
            result = result.along(operand)
        if let.op is Op.CAST:
            how = self.rounded.get(let.name, "")
            text = triton_types.cast(operands[0].text, let.source, let.dtype, how)
        else:
            texts = (operand.text for operand in operands)
            text = apply(let.op, let.source.compute, *texts, is_coarse=let.name in self.coarse)
        value = TileValue(text, result.rows, result.lanes)
        if text == operands[0].text:  # a cast that changes nothing
            self.scope.names[let.name] = value
        else:
            self.scope.define(let.name, ("let", text, let.source, let.dtype), value)

    def _check(self, condition: TileValue, failure: Failure) -> None:
        mask = self.scope.mask(condition)
        holds = condition.text if mask is None else f"{condition.text} | ~({mask})"
        self.scope.writer.line(f"tl.device_assert({holds}, {json.dumps(failure.text)})")

    # --- loops

    def _loop(self, loop: Loop) -> None:
        scope = self.scope
        if self._only_starts_registers(loop):
            return
        if scope.tile is None and is_tile(loop):
            self._tile(loop, lambda: self._statements(loop.body))
            return
        assert loop.axis.outer is None, "only the lane axis is cut"
        accumulators = self.reductions.accumulators_of(loop)
        if accumulators > 1:
            self._multiple_accumulators(loop, accumulators)
            return
        name = f"at_{loop.axis.name}"
        # Loads of several iterations are in flight at once.
        factor = (
            GPU.unrolled_loads
            if only_reduces(loop)
            else GPU.unrolled_rows
            if _sums_rows(loop)
            else 1
        )
        unrolled = f", loop_unroll_factor={factor}" if factor > 1 else ""
        head = f"for {name} in tl.range(0, {scope.size(loop.axis.extent)}{unrolled}):"
        with scope.block(head, written(loop.body)):
            scope.axes[loop.axis] = TileValue(name)
            self._statements(loop.body)

    def _multiple_accumulators(self, loop: Loop, accumulators: int) -> None:
        """So many iterations at once, in the rows of a tile."""
        scope, axis = self.scope, loop.axis
        start, name = f"from_{axis.name}", f"at_{axis.name}"
        bounds = f"0, {scope.size(axis.extent)}, {accumulators}"
        if (
            sum(isinstance(s, Load) for s in loop.body) < GPU.unrolled_accumulators
        ):  # at once as it is
            bounds += f", loop_unroll_factor={GPU.unrolled_accumulators}"
        with (
            scope.block(f"for {start} in tl.range({bounds}):", ()),
            scope.accumulator_rows(accumulators),
        ):
            wide = ".to(tl.int64)" if scope.needs_64_bits else ""
            scope.writer.line(f"{name} = {start} + tl.arange(0, {accumulators})[:, None]{wide}")
            scope.axes[axis] = TileValue(name, rows=True)
            scope.row_mask = scope.exists(axis, name, accumulators)
            self._statements(loop.body)

    def _only_starts_registers(self, loop: Loop) -> bool:
        """Filling an accumulator that starts in registers."""
        effects = [s for s in walk(loop.body) if not isinstance(s, (Constant, Loop))]
        return bool(effects) and all(
            isinstance(s, Store) and s.buffer in self.in_registers for s in effects
        )

    def _tile(self, loop: Loop, inside: Callable[[], None]) -> None:
        """The lanes of a loop at once, or so many of them at a time."""
        scope, axis = self.scope, loop.axis
        lanes = self.tiling.lanes[axis]
        extent = scope.size(axis.extent)
        if lanes.whole:
            name = scope.lanes(lanes.size)
            scope.axes[axis] = TileValue(name, lanes=True)
            scope.tile = Tile(axis, None, lanes.size, scope.exists(axis, name, lanes.size))
            inside()
        else:
            start, name = f"from_{axis.name}", f"at_{axis.name}"
            self.matmuls.hoist_left_operands(loop, self._statements)
            stages = f", num_stages={GPU.pipeline_stages}" if self.tiling.k_tiles else ""
            head = f"for {start} in tl.range(0, {extent}, {lanes.size}{stages}):"
            with scope.block(head, written(loop.body)):
                scope.writer.line(f"{name} = {start} + {scope.range_of(lanes.size)}")
                scope.axes[axis] = TileValue(name, lanes=True)
                scope.tile = Tile(axis, start, lanes.size, scope.exists(axis, name, lanes.size))
                inside()
        scope.tile = None

    def _accumulates(self, name: str) -> list[Loop]:
        """The loops between the place where an accumulator is declared and where it is added to."""
        for part in (self.nest.prologue, self.nest.body):
            loops = _loops_around_addition(part, name)
            if loops is not None:
                return loops
        raise AssertionError(f"nothing is added to {name}")


def _running(nest: Nest) -> set[str]:
    """Accumulators whose value so far matters."""
    everything = list(walk(nest.body))
    read = {s.accumulator for s in everything if isinstance(s, Running | Scan)}
    return read | {
        s.running_max for s in everything if isinstance(s, Init) and s.running_max is not None
    }


def _sums_rows(loop: Loop) -> bool:
    """Over rows that are added up."""
    return all(isinstance(s, Loop) and only_reduces(s) for s in loop.body)


def _tiles(count: Dim, size: int) -> Dim:
    return (count + (size - 1)) // size if size > 1 else count


def written(statements: Iterable[Stmt]) -> list[Buffer]:
    """Buffers that these statements write."""
    buffers: dict[Buffer, None] = {}
    for statement in walk(statements):
        if isinstance(statement, (Store, AccumulateInto)):
            buffers[statement.buffer] = None
        if isinstance(statement, AccumulateInto) and statement.positions is not None:
            buffers[statement.positions] = None
    return list(buffers)


def _loops_around_addition(statements: Iterable[Stmt], name: str) -> list[Loop] | None:
    """Loops around the statement that adds to `name`, from its declaration inwards."""
    remaining = iter(statements)
    for statement in remaining:
        if isinstance(statement, Init) and statement.name == name:
            return _loops_inside(remaining, name)
        if isinstance(statement, Loop):
            loops = _loops_around_addition(statement.body, name)
            if loops is not None:
                return loops
    return None


def _loops_inside(statements: Iterable[Stmt], name: str) -> list[Loop] | None:
    for statement in statements:
        if isinstance(statement, Accumulate | Scan) and statement.accumulator == name:
            return []
        if isinstance(statement, Loop):
            loops = _loops_inside(statement.body, name)
            if loops is not None:
                return [statement, *loops]
    return None


def is_mergeable(nest: Nest) -> bool:
    """Nothing of it outlasts a row, so that a program can go over to another nest."""
    buffers = {s.buffer for s in walk(nest.body) if isinstance(s, (Load, Store, AccumulateInto))}
    is_prepared = any(not isinstance(statement, Constant) for statement in nest.prologue)
    return not is_prepared and not any(buffer.role is Role.TASK for buffer in buffers)
