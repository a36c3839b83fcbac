"""An interpreter of the kernel IR in NumPy. It runs a kernel in place on flat arrays, one task
after the other.

The lanes of a loop are one NumPy array, or several of a given size. Scratch memory starts as
garbage. An index out of bounds is an InternalError. With `check`, a race is one too: two tasks that
access one element in one phase, where at least one of them stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
from typing_extensions import assert_never

from hemstitch.errors import InternalError
from hemstitch.ir.dims import Dim, evaluate
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Op
from hemstitch.ir.philox import philox_reference
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.arithmetic import (
    COMPUTED,
    STORED,
    Array,
    across_lanes,
    apply,
    cast,
    combine,
    from_storage,
    identity_values,
    rescaled,
    to_storage,
)
from hemstitch.kernel_ir.index import Axis, Computed, Index
from hemstitch.kernel_ir.nodes import (
    EPILOGUE_ROWS,
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
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Position,
    Random,
    Role,
    Running,
    Scan,
    Stmt,
    Store,
)

GARBAGE = 0x55  # bytes of fresh scratch memory; floats are NaN
NOBODY, SEVERAL, ATOMIC = -1, -2, -3  # in the place of a task's number


def run(
    kernel: Kernel,
    arrays: Sequence[Array],
    sizes: Mapping[str, int],
    threads: int = 3,
    order: Sequence[int] | None = None,
    *,
    precise: bool = False,
    check: bool = False,
    lanes: int | None = None,
) -> None:
    """Runs `kernel`. `arrays`: the memory of each parameter, flat; bf16 as its bits in u16.
    `order`: that of the tasks in each phase; the last of them runs the phases of the last block
    alone. `precise`: all floating-point arrays and values are f64. `lanes`: size of a vector (None:
    the whole loop).

    Raises the exception of the first check that failed, after all tasks have run.
    """
    launch = _Launch(dict(sizes) | {"threads": threads}, threads, precise, check, lanes)
    for buffer, array in zip(kernel.parameters, arrays, strict=True):
        launch.memory[buffer] = array
    for buffer in kernel.buffers:
        if buffer.role is Role.SHARED:
            launch.memory[buffer] = launch.garbage(buffer)
    tasks = [_Task(launch, task, kernel.buffers) for task in range(threads)]
    arrivals = list(range(threads) if order is None else order)
    with np.errstate(all="ignore"):
        for phase in kernel.phases:
            launch.owners.clear()
            for task in arrivals[-1:] if phase.is_alone else arrivals:
                for number, (nest, share) in enumerate(
                    zip(phase.nests, _shares(launch, phase, task))
                ):
                    tasks[task].run(nest, number, *share)
    if launch.failed is not None:
        raise launch.failed.exception()


@dataclass(slots=True)
class _Launch:
    """The state that all tasks share. `owners`: the last writer and reader of each element in this
    phase."""

    sizes: dict[str, int]
    threads: int
    precise: bool
    check: bool
    lanes: int | None
    memory: dict[Buffer, Array] = field(default_factory=dict)
    owners: dict[Buffer, tuple[Array, Array]] = field(default_factory=dict)
    failed: Failure | None = None

    def dim(self, size: Dim) -> int:
        return evaluate(size, self.sizes)

    def computed(self, dtype: DType) -> type[np.generic]:
        return np.float64 if self.precise and dtype.is_float else COMPUTED[dtype]

    def garbage(self, buffer: Buffer) -> Array:
        """Fresh scratch memory: NaN for floats, else `GARBAGE` in every byte."""
        count = self.dim(buffer.size)
        if buffer.dtype.is_float:
            return np.full(count, np.nan, np.float64 if self.precise else STORED[buffer.dtype])
        filled = np.full(count * buffer.dtype.bytes, GARBAGE, np.uint8)
        return (
            filled.astype(np.bool_)
            if buffer.dtype is DType.BOOL
            else filled.view(STORED[buffer.dtype])
        )

    def record_access(self, buffer: Buffer, place: Array, owner: int, writes: bool) -> None:
        """Records an access. Raises InternalError if it races with that of another owner."""
        if not self.check or buffer.role not in (Role.SHARED, Role.OUTPUT):
            return
        if buffer not in self.owners:
            count = self.memory[buffer].shape[0]
            self.owners[buffer] = (np.full(count, NOBODY), np.full(count, NOBODY))
        writers, readers = self.owners[buffer]
        conflicts = _is_another_task(writers[place], owner)
        if writes:
            conflicts |= _is_another_task(readers[place], owner)
        if conflicts.any():
            where = np.broadcast_to(place, conflicts.shape)[conflicts]
            raise InternalError(f"a race at {buffer.name}[{int(where.flat[0])}]")
        if writes:
            writers[place] = owner
        else:
            readers[place] = np.where(_is_another_task(readers[place], owner), SEVERAL, owner)


def _is_another_task(owners: Array, owner: int) -> Array:
    is_another: Array = (owners != NOBODY) & (owners != owner)
    return is_another


def _shares(launch: _Launch, phase: Phase, task: int) -> list[tuple[int, int]]:
    """The rows [low, high) of each nest that a task runs: an equal part of a nest whose row count
    the number of tasks divides, and a contiguous part of the work of all other nests."""
    rows = [prod(launch.dim(axis.extent) for axis in nest.rows) for nest in phase.nests]
    if phase.is_alone:
        return [(0, count) for count in rows]
    weights = [max(1, launch.dim(nest.weight)) for nest in phase.nests]
    uneven_work = [
        count * weight * bool(count % launch.threads) for count, weight in zip(rows, weights)
    ]
    ends = [sum(uneven_work) * place // launch.threads for place in (task, task + 1)]
    ranges, first = [], 0
    for count, weight, work in zip(rows, weights, uneven_work):
        low, high = (min(count, -(-max(0, end - first) // weight)) for end in ends)
        if not work:
            low, high = (count * place // launch.threads for place in (task, task + 1))
        ranges.append((low, high))
        first += work
    return ranges


@dataclass(slots=True)
class _InterpretedAccumulator:
    op: Op
    across: bool
    held: tuple[Array, ...]
    running_max: str | None = None
    columns: Axis | None = None


class _Task:
    """A task with its own scratch memory and values."""

    def __init__(self, launch: _Launch, number: int, buffers: Iterable[Buffer]) -> None:
        self.launch = launch
        self.number = number
        self.owner = 0
        self.memory = {b: launch.garbage(b) for b in buffers if b.role is Role.TASK}
        self.values: dict[str, Array] = {}
        self.accumulators: dict[str, _InterpretedAccumulator] = {}
        self.axes: dict[Axis, Any] = {}
        self.lanes: int | None = None  # number of lanes inside a lane loop

    def run(self, nest: Nest, number: int, low: int, high: int) -> None:
        self.owner = number * self.launch.threads + self.number
        self.axes = {TASK: self.number}
        self._statements(nest.prologue)
        extents = [self.launch.dim(axis.extent) for axis in nest.rows]
        for row, place in enumerate(product(*map(range, extents))):
            if low <= row < high:
                self.axes.update(zip(nest.rows, place))
                if nest.rows and (row == low or place[-1] == 0):
                    self._statements(nest.panels)
                self._statements(nest.body)
                if row + 1 == high or (row + 1 - low) % EPILOGUE_ROWS == 0:
                    self._statements(nest.epilogue)

    def _statements(self, statements: Iterable[Stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Stmt) -> None:  # noqa: C901, PLR0912  one case for each kind
        match statement:
            case Let():
                self.values[statement.name] = self._let(statement)
            case Constant(name, value, dtype):
                self.values[name] = np.asarray(value).astype(self.launch.computed(dtype))
            case Position(name, index):
                self.values[name] = self._index(index)
            case Random(name, seed, index):
                self.values[name] = self._random(self.values[seed], index)
            case Load(name, buffer, index, mask):
                self.values[name] = self._read(buffer, index, mask)
            case Store(buffer, index, value):
                self._write(buffer, index, self.values[value])
            case Init():
                self._init(statement)
            case Accumulate():
                self._accumulate(statement)
            case Running(name, accumulator):
                self.values[name] = self.accumulators[accumulator].held[0]
            case Scan():
                self._scan(statement)
            case Finish():
                self._finish(statement)
            case AccumulateInto():
                self._accumulate_into(statement)
            case Check(condition, failure):
                if not bool(np.all(self.values[condition])):
                    self.launch.failed = self.launch.failed or failure
            case Loop():
                self._loop(statement)
            case Contract():
                self._contract(statement)
            case AccumulateMatmul():
                self._accumulate_matmul(statement)
            case _:
                assert_never(statement)

    def _loop(self, loop: Loop) -> None:
        axis = loop.axis
        extent = self.launch.dim(axis.extent)
        if axis.outer is not None and axis.limit is not None:
            extent = min(extent, self.launch.dim(axis.limit) - self.axes[axis.outer] * extent)
        if loop.lanes and self.lanes is None:
            width = self.launch.lanes or max(1, extent)
            for first in range(0, extent, width):
                self.lanes = min(width, extent - first)
                self.axes[axis] = np.arange(first, first + self.lanes)
                self._statements(loop.body)
                self.lanes = None
            return
        ends = (0, extent)
        if loop.between is not None:
            first, last = (int(self.values[name]) for name in loop.between)
            assert 0 <= first <= last <= extent
            ends = (first, last)
        for index in range(*ends):
            self.axes[axis] = index
            self._statements(loop.body)

    def _contract(self, contract: Contract) -> None:
        dtype = self.launch.computed(contract.dtype)
        total = np.zeros((), dtype)
        for index in range(self.launch.dim(contract.axis.extent)):
            self.axes[contract.axis] = index
            self._statements(contract.body)
            product = self.values[contract.left] * self.values[contract.right]
            if contract.band is not None:
                product = np.where(self._index(contract.band) < 0, 0, product)
            total = total + product.astype(dtype)
        self.values[contract.name] = total

    # --- arithmetic

    def _let(self, let: Let) -> Array:
        operands = [self.values[name] for name in let.operands]
        if let.op is not Op.CAST:
            return apply(let.op, *operands).astype(self.launch.computed(let.dtype))
        if self.launch.precise and let.dtype.is_float:
            return operands[0].astype(np.float64)
        return cast(operands[0], let.dtype)

    def _random(self, seed: Array, index: Index) -> Array:
        uniform = philox_reference(int(seed.flat[0]), self._index(index))
        return uniform.astype(self.launch.computed(DType.F32))

    def _index(self, index: Index) -> Array:
        total = np.asarray(self.launch.dim(index.constant), np.int64)
        for variable, coefficient in index.terms:
            if isinstance(variable, Computed):
                value = self.values[variable.name]
            else:
                assert isinstance(variable, Axis), "windows are expanded before"
                value = self.axes[variable]
            total = total + np.asarray(value, np.int64) * self.launch.dim(coefficient)
        return np.asarray(total)

    # --- reductions

    def _init(self, init: Init) -> None:
        held = identity_values(init.op, init.dtype, self.launch.computed(init.dtype))
        if init.columns is not None:
            held = (np.repeat(held[0], self.launch.dim(init.columns.extent)),)
        accumulator = _InterpretedAccumulator(
            init.op, init.across, held, init.running_max, init.columns
        )
        self.accumulators[init.name] = accumulator

    def _finish(self, finish: Finish) -> None:
        accumulator = self.accumulators[finish.accumulator]
        at: Any = ... if accumulator.columns is None else self.axes[accumulator.columns]
        self.values[finish.name] = accumulator.held[0][at]
        if finish.position_name is not None:
            self.values[finish.position_name] = accumulator.held[1]

    def _accumulate_matmul(self, statement: AccumulateMatmul) -> None:
        accumulator = self.accumulators[statement.accumulator]
        (held,) = accumulator.held
        total = held.copy()
        for index in range(held.shape[0]):
            self.axes[statement.axis] = index
            self._statements(statement.body)
            product = self.values[statement.left] * self.values[statement.right]
            lanes = np.broadcast_to(product.astype(held.dtype), (self.lanes or 1,))
            total[index] += across_lanes(Op.SUM, (lanes,))[0]
        accumulator.held = (total,)

    def _accumulate(self, statement: Accumulate) -> None:
        accumulator = self.accumulators[statement.accumulator]
        new = [self.values[statement.value]]
        if statement.position is not None:
            new.append(self._index(statement.position))
        elif statement.order is not None:
            new.append(self.values[statement.order])
        if accumulator.across:
            lanes = tuple(np.broadcast_to(part, (self.lanes or 1,)) for part in new)
            new = list(across_lanes(accumulator.op, lanes))
        old = accumulator.held[0]
        accumulator.held = combine(accumulator.op, accumulator.held, tuple(new))
        for follower in self.accumulators.values():
            if follower.running_max == statement.accumulator:
                follower.held = (rescaled(follower.held[0], old, accumulator.held[0]),)

    def _scan(self, scan: Scan) -> None:
        accumulator = self.accumulators[scan.accumulator]
        (held,) = accumulator.held
        lanes = np.broadcast_to(self.values[scan.value], (self.lanes or 1,))
        prefixes = []
        for lane in lanes:
            (held,) = combine(accumulator.op, (held,), (lane,))
            prefixes.append(held)
        accumulator.held = (held,)
        self.values[scan.name] = np.array(prefixes, lanes.dtype)

    def _accumulate_into(self, statement: AccumulateInto) -> None:
        buffer, index, positions = statement.buffer, statement.index, statement.positions
        owner, self.owner = self.owner, ATOMIC if statement.atomic else self.owner
        old: tuple[Array, ...] = (self._read(buffer, index, None),)
        new: tuple[Array, ...] = (self.values[statement.value],)
        if positions is not None and statement.order is not None:
            old = (*old, self._read(positions, index, None))
            new = (*new, self.values[statement.order])
        result = combine(statement.op, old, new)
        self._write(buffer, index, result[0])
        if positions is not None:
            self._write(positions, index, result[1])
        self.owner = owner

    # --- memory

    def _place(self, buffer: Buffer, index: Index) -> tuple[Array, Array]:
        memory = self.memory[buffer] if buffer.role is Role.TASK else self.launch.memory[buffer]
        return memory, self._index(index)

    def _bounds(self, buffer: Buffer, index: Index, place: Array, count: int) -> None:
        outside = (place < 0) | (place >= count)
        if outside.any():
            at = int(place[outside].flat[0])
            raise InternalError(f"{buffer.name}[{index}] is at {at}, of {count} elements")

    def _read(self, buffer: Buffer, index: Index, mask: str | None) -> Array:
        memory, place = self._place(buffer, index)
        active = None if mask is None else self.values[mask]
        if active is not None:
            place, active = np.broadcast_arrays(place, active)
            if not active.any():
                return np.zeros(place.shape, self.launch.computed(buffer.dtype))
            place = np.where(active, place, place[active].flat[0])
        self._bounds(buffer, index, place, memory.shape[0])
        self.launch.record_access(buffer, place, self.owner, writes=False)
        is_f64 = self.launch.precise and buffer.dtype.is_float
        value = memory[place] if is_f64 else from_storage(memory[place], buffer.dtype)
        if active is None:
            return np.asarray(value)
        return np.where(active, value, np.zeros((), value.dtype))

    def _write(self, buffer: Buffer, index: Index, value: Array) -> None:
        memory, place = self._place(buffer, index)
        if self.lanes is not None and place.shape:
            value = np.broadcast_to(value, place.shape)
        elif value.shape:  # all lanes store one element: the first lane's value
            value = value[0]
        self._bounds(buffer, index, place, memory.shape[0])
        self.launch.record_access(buffer, place, self.owner, writes=True)
        is_f64 = self.launch.precise and buffer.dtype.is_float
        memory[place] = value if is_f64 else to_storage(np.asarray(value), buffer.dtype)
