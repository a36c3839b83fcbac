"""One nest as an LLVM function: void nest(table, indices, task, threads, low, high).

The table has what the nest touches (see `slots.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from typing_extensions import assert_never

from hemstitch.ir.dims import divides
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Op
from hemstitch.kernel_ir import nodes
from hemstitch.kernel_ir.index import Axis, Computed, Index, at
from hemstitch.kernel_ir.nodes import (
    TASK,
    Accumulate,
    Buffer,
    Let,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
)
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.matmul.lowering.tile_matmul import MatmulOperands, TileMatmul
from hemstitch.targets.cpu import failure_checks as checks
from hemstitch.targets.cpu import memory, micro_kernel, prefetch, register_transpose, row_copies
from hemstitch.targets.cpu import row_loop as rows
from hemstitch.targets.cpu import vector_philox as philox
from hemstitch.targets.cpu import vector_reductions as reduce
from hemstitch.targets.cpu.accumulators import Accumulators, packed, unpack
from hemstitch.targets.cpu.conversions import cast, constant
from hemstitch.targets.cpu.elementwise import apply
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.interleave_factor import unroll_factor, unroll_factor_of_rest
from hemstitch.targets.cpu.lane_loop import (
    LaneLoop,
    TransposedLoop,
    can_share_philox,
    elements_until_line,
    fills_lines,
    remaining_lanes,
    store_to_peel_for,
)
from hemstitch.targets.cpu.matmul_operands import BandMask, MatmulTile, Matrix, RightPanels
from hemstitch.targets.cpu.next_block import PrefetchRegion, prefetched_regions
from hemstitch.targets.cpu.slots import STATUS, Slots

Inside = Callable[[Value], None]


@dataclass(slots=True)
class LLVMNestPrinter:
    """Prints one nest."""

    emitter: Emitter
    slots: Slots
    steps: int  # of K in a cache block of a matmul
    failures: dict[Failure, int]  # of checks, with the status that each writes
    non_temporal: frozenset[Buffer] = frozenset()
    _names: dict[str, list[Value]] = field(default_factory=dict)
    _accumulators: Accumulators = field(default_factory=Accumulators)
    _failed: checks.Words = field(default_factory=dict)
    _axes: dict[Axis, Value] = field(default_factory=dict)
    _varying: set[str] = field(default_factory=set)  # values that differ between lanes
    _constant_values: dict[str, float] = field(default_factory=dict)
    # By the name of the random numbers that are made of them.
    _philox_words: dict[str, list[Value]] = field(default_factory=dict)
    _lanes: LaneLoop | None = None
    _peeled: nodes.Store | None = None  # see LaneLoop
    # By the names of loads, and of matmuls.
    _prefetches: Mapping[str, prefetch.SoftwarePrefetch] = field(default_factory=dict)
    _regions: Mapping[str, Sequence[PrefetchRegion]] = field(default_factory=dict)

    def print(self, nest: Nest) -> None:
        e = self.emitter
        self.slots.load(nest)
        self._failed = checks.begin(e, nest)
        self._axes[TASK] = Value("%task", "i64")
        self._statements(nest.prologue)
        self._prefetches, self._regions = prefetch.prefetches(nest), prefetched_regions(nest)

        def row(number: Value, carried: Sequence[Value]) -> Sequence[Value]:
            extents = [self.slots.dim(axis.extent) for axis in nest.rows]
            self._axes |= zip(nest.rows, rows.decoded(e, extents, number))
            if nest.panels:
                with e.when(rows.starts_outer_row(e, number, self._axes[nest.rows[-1]])):
                    self._statements(nest.panels)
            self._statements(nest.body)
            if nest.epilogue:
                with e.when(rows.ends_epilogue_group(e, number)):
                    self._statements(nest.epilogue)
            return carried

        e.loop(Value("%low", "i64"), Value("%high", "i64"), e.i64(1), [], row)
        if not self.non_temporal.isdisjoint(self.slots.values):
            e.line("fence seq_cst")  # stores past the caches know no other order
        checks.end(e, self._failed, self.failures, self.slots.values.get(STATUS))
        e.line("ret void")

    # --- control

    def _statements(self, statements: Sequence[Stmt]) -> None:
        axis = self._lanes.axis if self._lanes is not None else None
        for statement in register_transpose.with_interleaved_stores(statements, axis):
            if isinstance(statement, tuple):
                self._store_interleaved(*statement)
            else:
                self._statement(statement)

    def _statement(self, statement: Stmt) -> None:  # noqa: C901, PLR0912  a case a kind
        match statement:
            case Let():
                self._let(statement)
            case nodes.Constant(name, value, dtype):
                self._set(name, [constant(self.emitter, value, dtype)])
                self._constant_values[name] = float(value)
            case nodes.Position(name, index):
                self._set(name, [self._position(index, copy) for copy in self._unrolled()])
            case nodes.Random():
                self._random(statement)
            case Load(name, buffer, index):
                self._prefetch(name, buffer, index)
                self._set(name, self._read_all(statement))
            case nodes.Store():
                self._store_all(statement)
            case nodes.Init(name, op, dtype, across):
                identity = reduce.identity_values(self.emitter, op, dtype) * (
                    1 + statement.compensated
                )
                values = [identity for _ in self._unrolled()]
                self._accumulators[name] = reduce.Accumulator(
                    op, dtype, across, values, compensated=statement.compensated
                )
            case Accumulate():
                self._accumulate(statement)
            case nodes.Scan():
                self._scan(statement)
            case nodes.Finish():
                self._finish(statement)
            case nodes.AccumulateInto():
                for copy in self._unrolled():
                    self._accumulate_into(statement, copy)
            case nodes.Check(condition, failure):
                conditions = [self._get(condition, copy) for copy in self._unrolled()]
                used = None if self._lanes is None else self._lanes.mask
                checks.check(self.emitter, self._failed[failure], conditions, used)
            case Loop(axis, body, lanes):
                tile = TileMatmul.of(statement)
                if tile is not None:
                    micro_kernel.multiply(self.emitter, self._matmul(tile), self.steps)
                elif lanes and self._lanes is None:
                    self._lane_loop(axis, body)
                else:
                    self._serial_loop(statement)
            case nodes.Contract() | nodes.AccumulateMatmul() | nodes.Running():
                raise AssertionError("products have become loops")
            case _:
                assert_never(statement)

    def _serial_loop(self, loop: Loop) -> None:
        axis, body = loop.axis, loop.body

        def inside(index: Value) -> None:
            self._axes[axis] = index
            self._statements(body)

        e, start, extent = self.emitter, self.emitter.i64(0), self._extent(axis)
        if loop.between is not None:
            start, extent = (e.lane(self._get(name, 0)) for name in loop.between)
        width, is_free = e.width, self._lanes is None and loop.between is None
        lanes = register_transpose.transposable_lanes(axis, body, width) if is_free else None
        if lanes is not None:
            whole = self._whole_steps(extent, width, start)
            self._loop(start, whole, width, body, partial(self._transposed_block, axis, lanes))
            start = whole
            if register_transpose.overlaps(extent, width):
                self._transposed_block(axis, lanes, e.i64(int(extent.text) - width))
                start = extent
        if lanes is None or start != extent:
            self._loop(start, extent, 1, body, inside)

    def _whole_steps(self, extent: Value, step: int, low: Value) -> Value:
        """As far as whole steps reach from `low`."""
        e = self.emitter
        if extent.text.isdigit() and low.text.isdigit():
            return e.i64(int(extent.text) - (int(extent.text) - int(low.text)) % step)
        count = extent if low.text == "0" else e.binary("sub", extent, low)
        return e.binary("sub", extent, e.binary("srem", count, e.i64(step)))

    def _transposed_block(self, axis: Axis, loop: Loop, first: Value) -> None:
        """As many iterations from `first` on as a vector has lanes, each in a copy."""
        e = self.emitter
        indices = [first, *(e.binary("add", first, e.i64(k)) for k in range(1, e.width))]
        extent = int(self._extent(loop.axis).text)

        def block(lane: Value, count: int) -> None:
            mask = e.mask(lane < count for lane in range(e.width)) if count < e.width else None
            crossed = TransposedLoop(axis, tuple(indices), count)
            self._lanes = LaneLoop(loop.axis, (lane,) * e.width, mask, count == 1, crossed)
            self._statements(loop.body)
            self._lanes = None

        whole = extent // e.width * e.width
        if whole:
            self._loop(e.i64(0), e.i64(whole), e.width, loop.body, lambda i: block(i, e.width))
        if extent > whole:
            block(e.i64(whole), extent - whole)

    def _loop(
        self, low: Value, high: Value, step: int, body: tuple[Stmt, ...], inside: Inside
    ) -> None:
        """A loop that carries the accumulators its body adds to."""
        if (
            low.text.isdigit()
            and high.text.isdigit()
            and 0 < int(high.text) - int(low.text) <= step
        ):
            inside(low)
            return
        accumulators = self._accumulators.changed(body)

        def run(index: Value, carried: list[Value]) -> list[Value]:
            unpack(accumulators, carried)
            inside(index)
            return packed(accumulators)

        final = self.emitter.loop(low, high, self.emitter.i64(step), packed(accumulators), run)
        unpack(accumulators, final)

    def _extent(self, axis: Axis) -> Value:
        """How far the loop over `axis` goes; the last block of a cut axis may end early."""
        e = self.emitter
        extent = self.slots.dim(axis.extent)
        if axis.outer is None or axis.limit is None or divides(axis.extent, axis.limit):
            return extent
        start = e.binary("mul", self._axes[axis.outer], extent)
        left = e.binary("sub", self.slots.dim(axis.limit), start)
        is_less = e.compare("slt", left, extent)
        return e.select(is_less, left, extent)

    def _matmul(self, tile: TileMatmul) -> MatmulTile:
        """A product of matrices, and where these begin."""
        sizes = self._extent(tile.rows), self.slots.dim(tile.columns)
        self._axes |= dict.fromkeys(tile.axes, self.emitter.i64(0))

        def matrix(access: Load | nodes.Store, *axes: Axis, unit: int) -> Matrix:
            start, stride = self._pointer(access.buffer, access.index, 0), access.index.coefficient
            return Matrix(start, *(self.slots.quotient(stride(a), unit) for a in axes))

        def operands(pair: MatmulOperands) -> dict[str, Any]:
            k_axis, panel = pair.contract.axis, tile.panel(pair.right)
            return {
                "left": matrix(pair.left, tile.rows, k_axis, unit=tile.k_pack),
                "right": matrix(pair.right, k_axis, tile.lanes, unit=tile.k_pack),
                "k_extent": self._extent(k_axis),
                "panels": panel
                and RightPanels(panel[0], self.slots.quotient(panel[1], tile.k_pack)),
            }

        regions = self._regions.get(tile.contract.name, ())
        first = MatmulTile(
            **operands(tile.operands[0]),
            result=matrix(tile.store, tile.rows, tile.lanes, unit=1),
            rows=sizes[0],
            columns=sizes[1],
            is_padded=tile.store.buffer.role is Role.TASK,
            is_paired=tile.k_pack > 1,
            max_rows=tile.max_rows,
            band=tile.band and BandMask(self._scalar(tile.band[0], 0), *tile.band[1:]),
            prefetch_regions=[(self._pointer(r.buffer, r.index, 0), r.bytes) for r in regions],
        )
        reduced = [replace(first, prefetch_regions=(), **operands(p)) for p in tile.operands[1:]]
        return replace(first, batch_reduced=reduced)

    # --- lanes

    def _lane_loop(self, axis: Axis, body: tuple[Stmt, ...]) -> None:
        """Whole vectors several at a time, then those that are left, then a masked one."""
        e, extent = self.emitter, self._extent(axis)
        row = row_copies.copied_row(axis, body)
        if row is not None and row[0].buffer not in self.non_temporal:
            self._axes[axis] = e.i64(0)
            extent = row_copies.copy_if_long(
                e, row, extent, lambda access: self._pointer(access.buffer, access.index, 0)
            )
        factor, low = unroll_factor(axis, body, e.width), e.i64(0)
        self._peeled = store_to_peel_for(axis, body, self.non_temporal)
        if (store := self._peeled) is not None:
            self._axes[axis] = low
            head = elements_until_line(e, store.buffer.dtype, self._scalar(store.index, 0), extent)
            masked_vector = partial(self._vectors, axis, body, unroll_factor=1, extent=head)
            self._loop(low, head, e.width, body, masked_vector)
            low = head
        whole = self._whole_steps(extent, e.width * factor, low)
        self._whole_vectors(axis, body, low, whole, factor)
        if extent.text.isdigit() or not e.features.free_masks:
            low, whole = whole, self._whole_steps(extent, e.width, whole)
            rest_factor = 1
            if whole.text.isdigit():
                vectors = (int(whole.text) - int(low.text)) // e.width
                rest_factor = unroll_factor_of_rest(body, vectors)
            self._whole_vectors(axis, body, low, whole, rest_factor)
        if whole != extent:
            masked_vector = partial(self._vectors, axis, body, unroll_factor=1, extent=extent)
            self._loop(whole, extent, e.width, body, masked_vector)

    def _whole_vectors(
        self, axis: Axis, body: tuple[Stmt, ...], low: Value, high: Value, unroll_factor: int
    ) -> None:
        if low != high:
            self._accumulators.widen(self.emitter, body, unroll_factor)
            vectors = partial(self._vectors, axis, body, unroll_factor=unroll_factor)
            self._loop(low, high, self.emitter.width * unroll_factor, body, vectors)
            self._accumulators.narrow(self.emitter, body)

    def _vectors(
        self,
        axis: Axis,
        body: tuple[Stmt, ...],
        first: Value,
        unroll_factor: int,
        extent: Value | None = None,
    ) -> None:
        e = self.emitter
        firsts = [first]
        for copy in range(1, unroll_factor):
            firsts.append(e.binary("add", first, e.i64(copy * e.width)))
        mask, is_single = None, False
        if extent is not None:
            mask, is_single = remaining_lanes(e, first, extent)
        self._lanes = LaneLoop(axis, tuple(firsts), mask, is_single, peeled=self._peeled)
        self._statements(body)
        self._lanes = None

    def _unrolled(self) -> range:
        return range(len(self._lanes.firsts)) if self._lanes is not None else range(1)

    def _set(self, name: str, values: list[Value]) -> None:
        self._names[name] = values
        if self._lanes is not None:
            self._varying.add(name)

    def _get(self, name: str, copy: int) -> Value:
        values = self._names[name]
        return values[copy] if len(values) > 1 else values[0]

    # --- arithmetic

    def _let(self, let: Let) -> None:
        e = self.emitter
        if let.op in philox.ORDERINGS and (words := self._philox_words.get(let.operands[0])):
            bound = self._constant_values.get(let.operands[1])
            if masks := philox.compare_words(e, let.op, words, bound):
                self._set(let.name, masks)
                return
        operands = [self._names[name] for name in let.operands]
        unroll_factor = max(len(values) for values in operands)

        def compute(copy: int) -> Value:
            values = [v[copy] if len(v) > 1 else v[0] for v in operands]
            if let.op is Op.CAST:
                return cast(e, values[0], let.source, let.dtype)
            return apply(e, let.op, let.source.compute, *values)

        results = e.interleave(partial(compute, copy) for copy in range(unroll_factor))
        self._set(let.name, results)

    def _random(self, random: nodes.Random) -> None:
        e = self.emitter
        seed = e.lane(self._get(random.seed, 0))
        if can_share_philox(self._lanes, random.index):
            firsts = [self._scalar(random.index, copy) for copy in self._unrolled()[::4]]
            words = [word for first in firsts for word in philox.words4(e, seed, first)]
        else:
            positions = [self._position(random.index, copy) for copy in self._unrolled()]
            words = [philox.words(e, seed, position) for position in positions]
        self._philox_words[random.name] = words
        self._set(random.name, [philox.to_uniform(e, word) for word in words])

    # --- reductions

    def _accumulate(self, statement: Accumulate) -> None:
        e = self.emitter
        accumulator = self._accumulators[statement.accumulator]
        mask = self._lanes.mask if self._lanes is not None else None
        for copy in self._unrolled():
            new: tuple[Value, ...] = (self._get(statement.value, copy),)
            if statement.position is not None:
                new = (*new, self._position(statement.position, copy))
            elif statement.order is not None:
                new = (*new, self._get(statement.order, copy))
            old = accumulator.values[copy]
            result = reduce.combined(self.emitter, accumulator, old, new)
            if mask is not None and accumulator.across:
                result = tuple(e.select(mask, r, o) for r, o in zip(result, old))
            accumulator.values[copy] = result

    def _scan(self, statement: nodes.Scan) -> None:
        accumulator = self._accumulators[statement.accumulator]
        mask = self._lanes.mask if self._lanes is not None else None
        value = self._get(statement.value, 0)
        self._set(statement.name, [reduce.scanned(self.emitter, accumulator, value, mask)])

    def _finish(self, statement: nodes.Finish) -> None:
        accumulator = self._accumulators.pop(statement.accumulator)
        results = [reduce.finished(self.emitter, accumulator, copy) for copy in accumulator.values]
        self._set(statement.name, [result[0] for result in results])
        if statement.position_name is not None:
            self._set(statement.position_name, [result[1] for result in results])

    def _accumulate_into(self, statement: nodes.AccumulateInto, copy: int) -> None:
        assert not statement.atomic, "tasks of a processor add to elements of their own"
        buffer, index, positions = statement.buffer, statement.index, statement.positions
        new: tuple[Value, ...] = (self._get(statement.value, copy),)
        old: tuple[Value, ...] = (self._read(buffer, index, copy, None),)
        if positions is not None and statement.order is not None:
            new = (*new, self._get(statement.order, copy))
            old = (*old, self._read(positions, index, copy, None))
        accumulator = reduce.Accumulator(statement.op, statement.dtype, False, [])
        result = reduce.combined(self.emitter, accumulator, old, new)
        self._store(buffer, index, result[0], copy)
        if positions is not None:
            self._store(positions, index, result[1], copy)

    # --- memory

    def _prefetch(self, name: str, buffer: Buffer, index: Index) -> None:
        software_prefetch = self._prefetches.get(name)
        if software_prefetch is not None:
            for copy in self._unrolled():
                pointer = self._pointer(buffer, index, copy)
                for line in range(software_prefetch.lines):
                    elements = line * CPU.line_bytes // buffer.dtype.bytes
                    distance = software_prefetch.distance + elements
                    memory.prefetch(
                        self.emitter, buffer.dtype, pointer, distance, software_prefetch.level
                    )

    def _read(self, buffer: Buffer, index: Index, copy: int, condition: str | None) -> Value:
        e = self.emitter
        mask = self._mask(copy, condition, with_lanes=not self._is_row_buffer(buffer, index))
        if self._is_scattered(index):
            offsets = self._position(index, copy)
            return memory.gather(e, buffer.dtype, self.slots[buffer], offsets, mask)
        pointer = self._pointer(buffer, index, copy)
        if condition is not None and condition not in self._varying:
            # Hundreds of cycles for no lane at all, where there may be no memory.
            some = e.lane(self._get(condition, copy))
            pointer = e.select(some, pointer, self.slots[buffer])
        stride = self._lane_stride(index)
        if stride == 0 and condition is None:  # one element for all: it exists for unused lanes too
            mask = None
        return memory.load(e, buffer.dtype, pointer, stride, mask)

    def _store(self, buffer: Buffer, index: Index, value: Value, copy: int) -> None:
        e = self.emitter
        if self._is_row_buffer(buffer, index):
            memory.store(e, buffer.dtype, self._pointer(buffer, index, copy), 1, value, None)
            return
        mask = self._lanes.mask if self._lanes is not None else None
        stride = self._lane_stride(index)
        is_uniform = stride == 0 and not self._is_scattered(index)
        if is_uniform or (self._lanes is not None and self._lanes.is_single):
            memory.store_first(e, buffer.dtype, self._pointer(buffer, index, copy), value)
            return
        if self._is_scattered(index):
            offsets = self._position(index, copy)
            memory.scatter(e, buffer.dtype, self.slots[buffer], offsets, value, mask)
            return
        pointer = self._pointer(buffer, index, copy)
        if buffer in self.non_temporal and fills_lines(self._lanes, e.width, buffer.dtype, index):
            memory.store_non_temporal(e, buffer.dtype, pointer, value)
        else:
            memory.store(e, buffer.dtype, pointer, stride, value, mask)

    def _read_all(self, load: Load) -> list[Value]:
        buffer, index = load.buffer, load.index
        transposed_access = None if load.mask is not None else self._transposed_access(load)
        if transposed_access is None:
            return [self._read(buffer, index, copy, load.mask) for copy in self._unrolled()]
        pointer = self._pointer(buffer, index, 0)
        return memory.load_transposed(self.emitter, buffer.dtype, pointer, *transposed_access)

    def _store_all(self, store: nodes.Store) -> None:
        buffer, index, transposed_access = store.buffer, store.index, self._transposed_access(store)
        values = [self._get(store.value, copy) for copy in self._unrolled()]
        if transposed_access is not None:
            place = self._pointer(buffer, index, 0)
            memory.store_transposed(
                self.emitter, buffer.dtype, place, *transposed_access[:2], values
            )
            return
        for copy, value in enumerate(values):
            self._store(buffer, index, value, copy)

    def _transposed_access(self, access: Load | nodes.Store) -> tuple[Value | int, int, int] | None:
        """Of what crosses the axes: its step along the lanes, how many of these are in use, and its
        step along the axis around."""
        if (lanes := self._lanes) is None or (transposed := lanes.transposed) is None:
            return None
        step = register_transpose.transposed_step(access, transposed.axis, lanes.axis)
        return None if step is None else (self._lane_stride(access.index), transposed.count, step)

    def _store_interleaved(self, first: nodes.Store, second: nodes.Store) -> None:
        assert self._lanes is not None
        dtype, mask = first.buffer.dtype, self._lanes.mask
        for copy in self._unrolled():
            place = self._pointer(first.buffer, first.index, copy)
            pair = self._get(first.value, copy), self._get(second.value, copy)
            memory.store_interleaved(self.emitter, dtype, place, pair, mask)

    def _is_row_buffer(self, buffer: Buffer, index: Index) -> bool:
        """Scratch that one loop walks from its start: it has room for whole vectors, unused lanes
        too (layout.MOST_LANES). A load soon after a masked store waits until that has left the
        processor's store buffer, so that rows could not overlap."""
        lanes = self._lanes
        is_whole = lanes is not None and lanes.peeled is None and index == at(lanes.axis)
        return buffer.role is Role.TASK and is_whole

    def _mask(self, copy: int, condition: str | None, with_lanes: bool = True) -> Value | None:
        mask = self._lanes.mask if self._lanes is not None and with_lanes else None
        if condition is None:
            return mask
        value = self._get(condition, copy)
        return value if mask is None else self.emitter.binary("and", mask, value)

    def _pointer(self, buffer: Buffer, index: Index, copy: int) -> Value:
        offset = self._scalar(index, copy)
        element = memory.STORAGE[buffer.dtype]
        return self.emitter.define(
            "ptr", f"getelementptr {element}, {self.slots[buffer]}, {offset}"
        )

    def _lane_stride(self, index: Index) -> Value | int:
        if self._lanes is None:
            return 0
        step = index.coefficient(self._lanes.axis)
        return step if isinstance(step, int) else self.slots.dim(step)

    def _is_scattered(self, index: Index) -> bool:
        """Some index is computed lane by lane."""
        computed = [v.name for v, _ in index.terms if isinstance(v, Computed)]
        return self._lanes is not None and not self._varying.isdisjoint(computed)

    # --- indices

    def _scalar(self, index: Index, copy: int) -> Value:
        """The index of the copy's first lane, as a scalar."""
        e = self.emitter
        total = self.slots.dim(index.constant)
        for variable, coefficient in index.terms:
            if isinstance(variable, Computed):
                value = e.lane(self._get(variable.name, copy))
            else:
                assert isinstance(variable, Axis), "windows are expanded before"
                own = None if self._lanes is None else self._lanes.index_of(variable, copy)
                value = own or self._axes[variable]
            if coefficient != 1:
                value = e.binary("mul", value, self.slots.dim(coefficient))
            total = value if total.text == "0" else e.binary("add", total, value)
        return total

    def _position(self, index: Index, copy: int) -> Value:
        """The index of every lane, as a vector."""
        e = self.emitter
        uniform = Index((), index.constant)
        varying: list[Value] = []
        for variable, coefficient in index.terms:
            if isinstance(variable, Computed):
                value = self._get(variable.name, copy)
            elif self._lanes is not None and variable is self._lanes.axis:
                value = e.binary("add", e.splat(self._lanes.firsts[copy]), e.lane_numbers())
            else:
                uniform = Index((*uniform.terms, (variable, coefficient)), uniform.constant)
                continue
            if coefficient != 1:
                value = e.binary("mul", value, e.splat(self.slots.dim(coefficient)))
            varying.append(value)
        total = e.splat(self._scalar(uniform, copy))
        for value in varying:
            total = e.binary("add", total, value)
        return total
