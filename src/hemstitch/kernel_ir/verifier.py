"""The verifier of the kernel IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hemstitch.errors import InternalError
from hemstitch.ir.dims import evaluate, symbols
from hemstitch.ir.graph import Op
from hemstitch.ir.ops import OPS, SCANNED, OpClass, ResultType, is_reduction
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import matmul_problem
from hemstitch.kernel_ir.index import Axis, AxisPart, Computed, Index, Variable
from hemstitch.kernel_ir.nodes import (
    TASK,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Begin,
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
    Position,
    Random,
    Role,
    Running,
    Scan,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.printer import text

ARG = (Op.ARGMAX, Op.ARGMIN)
SAMPLE = {"threads": 3}  # tasks, for bounds that depend on their number


def verify(kernel: Kernel) -> None:
    """Raises InternalError for the first rule that the kernel breaks."""
    _check_begins(kernel)
    _Buffers(kernel).check()
    for phase in kernel.phases:
        for nest in phase.nests:
            _NestCheck(kernel, phase.is_alone).check(nest)
            problem = matmul_problem(nest)
            if problem is not None:
                raise _invalid(kernel, problem)


def _invalid(kernel: Kernel, problem: str) -> InternalError:
    return InternalError(f"invalid kernel {kernel.name}: {problem}")


def _check_begins(kernel: Kernel) -> None:
    """After a last-block phase one task is left, until the end."""
    is_alone = False
    for number, phase in enumerate(kernel.phases):
        begin = phase.begin
        if number == 0 and begin is not Begin.BARRIER:
            raise _invalid(kernel, f"the first phase begins with {begin.value}")
        if is_alone and begin is not Begin.ALONE:
            raise _invalid(kernel, f"a {begin.value} behind a ticket, where one task is left")
        if not is_alone and begin is Begin.ALONE:
            raise _invalid(kernel, "a phase for one task, and no ticket says which")
        is_alone = phase.is_alone


# --- buffers


class _Buffers:
    """Checks which nests and phases read and write each buffer."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def check(self) -> None:
        names = [buffer.name for buffer in self.kernel.buffers]
        if len(set(names)) != len(names):
            raise _invalid(self.kernel, "two buffers have one name")
        written: set[Buffer] = set()  # in earlier phases
        for phase in self.kernel.phases:
            filled = [self._nest(nest, written) for nest in phase.nests]
            written.update(*filled)

    def _nest(self, nest: Nest, earlier: set[Buffer]) -> set[Buffer]:
        """Checks one nest; the buffers that it writes. `earlier`: written in earlier phases."""
        filled: set[Buffer] = set()
        everything = [statement for part in nest.parts for statement in walk(part)]
        private = {b for b in _written(everything) if _is_private(b, nest, everything)}
        for statement in everything:
            for buffer in _read(statement):
                self._check_read(buffer, statement, earlier, filled, private)
            for buffer in _written([statement]):
                self._check_written(buffer, statement)
                filled.add(buffer)
        return filled

    def _check_read(
        self,
        buffer: Buffer,
        statement: Stmt,
        earlier: set[Buffer],
        filled: set[Buffer],
        private: set[Buffer],
    ) -> None:
        self._check_declared(buffer, statement)
        where = f"{text(statement)}: {buffer.name}"
        if buffer.role is Role.TASK and buffer not in filled:
            raise _invalid(self.kernel, f"{where} is read before it is written in this nest")
        if isinstance(statement, AccumulateInto):
            if buffer not in (earlier if statement.atomic else filled):
                raise _invalid(self.kernel, f"{where} is added to before it is cleared")
        elif buffer.role is Role.SHARED and buffer not in earlier | (private & filled):
            raise _invalid(self.kernel, f"{where} is not written in an earlier phase")

    def _check_written(self, buffer: Buffer, statement: Stmt) -> None:
        self._check_declared(buffer, statement)
        if buffer.role is Role.INPUT:
            raise _invalid(self.kernel, f"{text(statement)}: {buffer.name} is an input")

    def _check_declared(self, buffer: Buffer, statement: Stmt) -> None:
        if buffer not in self.kernel.buffers:
            raise _invalid(self.kernel, f"{text(statement)}: {buffer.name} is not declared")


def _is_private(buffer: Buffer, nest: Nest, statements: Iterable[Stmt]) -> bool:
    """Each task, or each row, accesses its own part of `buffer` only."""
    indices = [
        s.index
        for s in statements
        if isinstance(s, (Load, Store, AccumulateInto)) and s.buffer is buffer
    ]
    if all(index.coefficient(TASK) != 0 for index in indices):
        return True
    steps = {tuple(index.coefficient(axis) for axis in nest.rows) for index in indices}
    return len(steps) == 1 and all(step != 0 for step in steps.pop())


def _read(statement: Stmt) -> Iterator[Buffer]:
    match statement:
        case Load(_, buffer):
            yield buffer
        case AccumulateInto(buffer, positions=positions):
            yield buffer
            if positions is not None:
                yield positions
        case _:
            return


def _written(statements: Iterable[Stmt]) -> Iterator[Buffer]:
    for statement in statements:
        if isinstance(statement, (Store, AccumulateInto)):
            yield statement.buffer
        if isinstance(statement, AccumulateInto) and statement.positions is not None:
            yield statement.positions


# --- statements


@dataclass(frozen=True, slots=True)
class _Value:
    """A value: its type, and whether it may differ between lanes."""

    dtype: DType
    varies: bool


@dataclass(slots=True)
class _OpenAccumulator:
    """An accumulator that is declared and not finished. `lanes`: it was declared inside a lane
    loop."""

    op: Op
    dtype: DType
    across: bool
    lanes: bool
    columns: Axis | None = None

    @property
    def is_running_max(self) -> bool:
        """It can be a running maximum."""
        return self.op is Op.MAX and self.across and self.dtype.is_float


@dataclass(slots=True)
class _VerifiedScope:
    """A block of statements, and what it defines."""

    axis: Axis | None
    lanes: bool
    values: dict[str, _Value] = field(default_factory=dict)
    open: dict[str, _OpenAccumulator] = field(default_factory=dict)


class _NestCheck:
    """Checks one nest. `is_alone`: one task runs it, so that the axis `TASK` is not available."""

    def __init__(self, kernel: Kernel, is_alone: bool) -> None:
        self.kernel = kernel
        self.scopes = [_VerifiedScope(None, lanes=False)]
        self.axes: set[Axis] = set() if is_alone else {TASK}
        self.defined: set[str] = set()
        self.statement: Stmt | None = None

    def check(self, nest: Nest) -> None:
        self._block(nest.prologue)
        self.axes |= set(nest.rows)
        self._require(len(set(nest.rows)) == len(nest.rows), "a row axis is there twice")
        for axis in nest.rows:
            self._require(axis.outer is None, f"row axis {axis} is the inner part of another")
        self._require(not nest.panels or bool(nest.rows), "panels, and no rows")
        for part in (nest.panels, nest.body, nest.epilogue):
            self._block(part)
        self._close()

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            where = "" if self.statement is None else f"{text(self.statement)}: "
            raise _invalid(self.kernel, f"{where}{problem}")

    def _block(self, statements: Iterable[Stmt]) -> None:
        for statement in statements:
            self.statement = statement
            _CHECKS[type(statement)](self, statement)

    def _close(self) -> None:
        unfinished = self.scopes.pop().open
        self._require(not unfinished, f"{', '.join(unfinished)} is never finished")

    @property
    def _lane_axis(self) -> Axis | None:
        return next((scope.axis for scope in self.scopes if scope.lanes), None)

    # --- names

    def _define(self, name: str, dtype: DType, varies: bool) -> None:
        self._require(name not in self.defined, f"{name} is defined twice")
        self.defined.add(name)
        self.scopes[-1].values[name] = _Value(dtype.compute, varies)

    def _use(self, name: str, dtype: DType) -> bool:
        """Checks a use of a value; whether it may differ between lanes."""
        value = next((s.values[name] for s in self.scopes if name in s.values), None)
        self._require(value is not None, f"{name} is not defined here")
        assert value is not None
        compute = dtype.compute
        self._require(value.dtype is compute, f"{name} is {value.dtype}, not {compute}")
        return value.varies

    def _index(self, index: Index) -> bool:
        """Checks an index; whether it may differ between lanes."""
        varies = False
        for variable, _ in index.terms:
            if isinstance(variable, Computed):
                varies |= self._use(variable.name, DType.I64)
            else:
                axis = variable.axis if isinstance(variable, AxisPart) else variable
                self._require(axis in self.axes, f"there is no loop over {axis} here")
                varies |= axis is self._lane_axis
        return varies

    # --- one method for each kind of statement

    def _let(self, let: Let) -> None:
        row = OPS[let.op]
        self._require(row.op_class is OpClass.ELEMENTWISE, "is not elementwise")
        self._require(row.arity == len(let.operands), f"takes {row.arity} operands")
        types = [let.source] * len(let.operands)
        if let.op is Op.WHERE:
            types[0] = DType.BOOL
        varies = [self._use(name, dtype) for name, dtype in zip(let.operands, types)]
        expected = {ResultType.SAME: let.source, ResultType.BOOL: DType.BOOL}.get(row.result)
        if expected is not None:
            fits = let.dtype.compute is expected.compute
            self._require(fits, f"gives {expected}, not {let.dtype}")
        self._define(let.name, let.dtype, any(varies))

    def _constant(self, constant: Constant) -> None:
        self._define(constant.name, constant.dtype, False)

    def _position(self, position: Position) -> None:
        self._define(position.name, DType.I64, self._index(position.index))

    def _random(self, random: Random) -> None:
        self._require(not self._use(random.seed, DType.I64), "the seed differs between lanes")
        self._define(random.name, DType.F32, self._index(random.index))

    def _load(self, load: Load) -> None:
        varies = self._index(load.index)
        if load.mask is not None:
            varies |= self._use(load.mask, DType.BOOL)
        else:
            self._bounds(load.buffer, load.index)
        self._define(load.name, load.buffer.dtype, varies)

    def _store(self, store: Store) -> None:
        value = self._use(store.value, store.buffer.dtype)
        self._require(self._index(store.index) or not value, "all lanes are stored in one place")
        self._bounds(store.buffer, store.index)

    def _init(self, init: Init) -> None:
        self._require(is_reduction(init.op), "is no reduction")
        is_new = init.name not in self.defined
        self._require(is_new, f"{init.name} is defined twice")
        self.defined.add(init.name)
        lanes = self._lane_axis is not None
        self._require(not (init.across and lanes), "combines lanes inside a lane loop")
        accumulator = _OpenAccumulator(init.op, init.dtype, init.across, lanes, init.columns)
        is_sum = accumulator.op is Op.SUM and accumulator.across and accumulator.dtype.is_float
        if init.running_max is not None:
            self._require(is_sum, "only a sum of floats across lanes can follow")
            is_running_max = self._accumulator(init.running_max).is_running_max
            self._require(is_running_max, f"{init.running_max} is no maximum across lanes")
        if init.compensated:
            is_plain = init.op is Op.SUM and init.dtype.is_float and not init.across
            self._require(is_plain, "only a sum of floats that combines no lanes is compensated")
        if init.columns is not None:
            self._require(is_sum, "only a sum of floats across lanes can have columns")
            self._require(init.columns not in self.axes, f"{init.columns} is looped over already")
        self.scopes[-1].open[init.name] = accumulator

    def _accumulator(self, name: str) -> _OpenAccumulator:
        """The open accumulator of this name."""
        accumulator = next((s.open[name] for s in self.scopes if name in s.open), None)
        self._require(accumulator is not None, f"{name} is not declared, or finished")
        assert accumulator is not None
        return accumulator

    def _accumulate(self, accumulate: Accumulate) -> None:
        name = accumulate.accumulator
        accumulator = self._accumulator(name)
        self._require(accumulator.columns is None, f"{name} has columns")
        self._use(accumulate.value, accumulator.dtype)
        lanes = self._lane_axis is not None
        if accumulator.across:
            self._require(lanes, f"{name} combines lanes, and there are none")
        else:
            self._require(lanes == accumulator.lanes, f"{name} does not combine lanes")
        has_position = accumulate.position is not None or accumulate.order is not None
        self._require(has_position == (accumulator.op in ARG), "a position, or none, where needed")
        if accumulate.position is not None:
            self._index(accumulate.position)
        if accumulate.order is not None:
            self._use(accumulate.order, DType.I64)

    def _running(self, running: Running) -> None:
        accumulator = self._accumulator(running.accumulator)
        self._require(
            accumulator.is_running_max, f"{running.accumulator} is no maximum across lanes"
        )
        self._require(self._lane_axis is not None, "there are no lanes here")
        self._define(running.name, accumulator.dtype, False)

    def _scan(self, scan: Scan) -> None:
        accumulator = self._accumulator(scan.accumulator)
        is_scanned = (
            accumulator.across
            and accumulator.op in SCANNED.values()
            and accumulator.columns is None
        )
        self._require(is_scanned, f"{scan.accumulator} is no sum or product across lanes")
        self._require(self._lane_axis is not None, "there are no lanes here")
        self._use(scan.value, accumulator.dtype)
        self._define(scan.name, accumulator.dtype, True)

    def _finish(self, finish: Finish) -> None:
        name = finish.accumulator
        accumulator = self._accumulator(name)
        scope = next(scope for scope in self.scopes if name in scope.open)
        del scope.open[name]
        if accumulator.columns is not None:
            inside = self.scopes[-1].lanes and self.scopes[-1].axis is accumulator.columns
            self._require(inside, f"{name} has {accumulator.columns} for columns")
            self._define(finish.name, accumulator.dtype, True)
            return
        self._require(scope is self.scopes[-1], f"{name} is not declared in this block")
        self._define(finish.name, accumulator.dtype, accumulator.lanes)
        if finish.position_name is not None:
            self._require(accumulator.op in ARG, f"{accumulator.op.value} has no position")
            self._define(finish.position_name, DType.I64, accumulator.lanes)

    def _accumulate_into(self, into: AccumulateInto) -> None:
        self._require(into.dtype.compute is into.buffer.dtype.compute, "is of another type")
        value = self._use(into.value, into.dtype)
        varies = self._index(into.index)
        is_uniform = self._lane_axis is None or varies or not value
        self._require(is_uniform, "all lanes are added in one place")
        has_position = into.positions is not None and into.order is not None
        self._require(has_position == (into.op in ARG), "a position, or none, where needed")
        if into.order is not None:
            self._use(into.order, DType.I64)
        self._bounds(into.buffer, into.index)

    def _check(self, check: Check) -> None:
        self._use(check.condition, DType.BOOL)

    def _loop(self, loop: Loop) -> None:
        axis = loop.axis
        self._require(axis not in self.axes, f"{axis} is looped over already")
        self._require(not loop.lanes or self._lane_axis is None, "lanes inside lanes")
        for name in loop.between or ():
            varies = self._use(name, DType.I64)
            self._require(not loop.lanes and not varies, "each lane would have ends of its own")
        outer = axis.outer
        if outer is not None:
            self._require(outer in self.axes, f"there is no loop over {outer} here")
        self.axes.add(axis)
        self.scopes.append(_VerifiedScope(axis, loop.lanes))
        self._block(loop.body)
        self.statement = loop
        self._close()
        self.axes.remove(axis)

    def _contract(self, contract: Contract) -> None:
        axis = contract.axis
        self._require(axis not in self.axes, f"{axis} is looped over already")
        self.axes.add(axis)
        self.scopes.append(_VerifiedScope(axis, lanes=False))
        self._block(contract.body)
        self.statement = contract
        varies = [self._use(name, contract.source) for name in (contract.left, contract.right)]
        if contract.band is not None:
            self._index(contract.band)
        self._close()
        self.axes.remove(axis)
        self._require(contract.dtype is contract.source.compute, "is added up in another type")
        self._define(contract.name, contract.dtype, any(varies))

    def _accumulate_matmul(self, matmul: AccumulateMatmul) -> None:
        accumulator, axis = self._accumulator(matmul.accumulator), matmul.axis
        self._require(accumulator.columns is axis, f"{matmul.accumulator} has no columns {axis}")
        self._require(self._lane_axis is not None, "there are no lanes here")
        self._require(axis not in self.axes, f"{axis} is looped over already")
        self._require(accumulator.dtype is matmul.source.compute, "is added up in another type")
        self._use(matmul.left, matmul.source)
        self.axes.add(axis)
        self.scopes.append(_VerifiedScope(axis, lanes=False))
        self._block(matmul.body)
        self.statement = matmul
        self._use(matmul.right, matmul.source)
        self._close()
        self.axes.remove(axis)

    # --- bounds

    def _bounds(self, buffer: Buffer, index: Index) -> None:
        """Checks an access to scratch memory. Parameters may be strided, so that their bounds are
        unknown."""
        if buffer.role not in (Role.TASK, Role.SHARED):
            return
        dims = [buffer.size, index.constant, *(c for _, c in index.terms)]
        dims += [axis.extent for axis in self.axes]
        if any(symbols(dim) - SAMPLE.keys() for dim in dims):
            return
        if any(evaluate(axis.extent, SAMPLE) == 0 for axis in self.axes):
            return  # the statement never runs
        low, high = _range(index)
        size = evaluate(buffer.size, SAMPLE)
        self._require(low >= 0, f"{buffer.name} is reached {-low} before its start")
        self._require(high < size, f"{buffer.name} has {size} elements, {high} is reached")


def _range(index: Index) -> tuple[int, int]:
    """The least and greatest value of an index, for the sizes of `SAMPLE`."""
    steps = {variable: evaluate(step, SAMPLE) for variable, step in index.terms}
    low = high = evaluate(index.constant, SAMPLE)
    for variable, step in _whole_axes(steps):
        reach = step * (evaluate(variable.extent, SAMPLE) - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def _whole_axes(steps: Mapping[Variable, int]) -> Iterator[tuple[Variable, int]]:
    """Each variable with its stride; both axes of a tiled loop as one, which has a limit."""
    remaining = dict(steps)
    for variable in steps:
        if not isinstance(variable, Axis) or variable.outer is None or variable.limit is None:
            continue
        if symbols(variable.limit) - SAMPLE.keys():
            continue
        inner = remaining[variable]
        if remaining.get(variable.outer) == inner * evaluate(variable.extent, SAMPLE):
            del remaining[variable], remaining[variable.outer]
            yield Axis(variable.name, variable.limit), inner
    yield from remaining.items()


_CHECKS: Mapping[type, Callable[[_NestCheck, Any], None]] = MappingProxyType(
    {
        Let: _NestCheck._let,
        Constant: _NestCheck._constant,
        Position: _NestCheck._position,
        Random: _NestCheck._random,
        Load: _NestCheck._load,
        Store: _NestCheck._store,
        Init: _NestCheck._init,
        Accumulate: _NestCheck._accumulate,
        Running: _NestCheck._running,
        Scan: _NestCheck._scan,
        Finish: _NestCheck._finish,
        AccumulateInto: _NestCheck._accumulate_into,
        Check: _NestCheck._check,
        Loop: _NestCheck._loop,
        Contract: _NestCheck._contract,
        AccumulateMatmul: _NestCheck._accumulate_matmul,
    }
)
