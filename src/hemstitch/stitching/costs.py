"""What the parts of a kernel take: measured where the machine has measurements, else nominal. Takes
statements and bytes, gives vector instructions and seconds.

A probe is a kernel of its own, with a load, a store and a launch around its operation. These are
taken off, so that what is left of several probes adds up to the time of a kernel with them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import OPS, ResultType
from hemstitch.ir.types import DType, TypeKind
from hemstitch.kernel_ir.index import Computed, Index, expand
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateInto,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Random,
    Scan,
    Stmt,
    Store,
    statements,
)
from hemstitch.machine.probes import OperationProbe, Probe
from hemstitch.machine.record import Machine

ELEMENTS = 2048  # of a probe, so that operand and result stay in L1
MOST_LENGTH = 1024  # a longer row takes no less for each vector
MOST_COLUMNS = 64  # leaves a probe of column sums enough rows
MOST_STEP = 16  # from here on every element has a cache line of its own
LEAST_COPY, MOST_COPY = 1 << 14, 1 << 27  # bytes moved: from within L1 to beyond every cache
RANDOM_FLOPS = OPS[Op.PHILOX].flops
SCAN_FLOPS = OPS[Op.CUMSUM].flops


class _NotMeasured(Exception):
    """The time of an operation is not known."""


@dataclass(frozen=True, slots=True)
class LoopContext:
    """What a statement is in. `length`: of the loop, at the example sizes."""

    loop: Loop
    length: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one kernel on one machine."""

    machine: Machine
    measured: Mapping[Probe, float]
    accumulators: Mapping[str, Init]

    @staticmethod
    def of(kernel: Kernel, machine: Machine) -> Costs:
        accumulators = {s.name: s for s in statements(kernel) if isinstance(s, Init)}
        return Costs(machine, {} if machine.measured is None else machine.measured, accumulators)

    def launch_seconds(self) -> float:
        """Measured only of one task: what several wait for is whatever else the processor does."""
        nominal = self.machine.launch_seconds
        return nominal if self.machine.threads > 1 else self.measured.get(self._launch, nominal)

    def memory_seconds(self, moved: int) -> float:
        """Of tasks that copy a share each, in the same cache as that or in none."""
        machine = self.machine
        size = min(max(_power_of_two(moved // machine.threads), LEAST_COPY), MOST_COPY)
        tasks = (
            min(machine.threads, machine.bandwidth_threads)
            if size > machine.l2_bytes
            else machine.threads
        )
        rows = size // (2 * DType.F32.bytes * MOST_LENGTH)
        try:
            seconds = self._without_launch(self._plain(DType.F32, MOST_LENGTH, rows))
        except _NotMeasured:
            return moved / machine.memory_bytes_per_second
        return moved / tasks / size * seconds

    def instructions(self, statement: Stmt, lanes: LoopContext | None) -> float:
        """In units of one vector add."""
        if lanes is None or self.machine.measured is None:
            return _nominal(statement)
        try:
            seconds = self._seconds(statement, lanes)
        except _NotMeasured:
            return _nominal(statement)
        return max(0.0, seconds) * self.machine.operations_per_second  # noise may leave less

    def _seconds(self, statement: Stmt, lanes: LoopContext) -> float:
        """Raises _NotMeasured, also for what has no kernel of its own."""
        length = min(_power_of_two(max(1, lanes.length)), MOST_LENGTH)
        plain = self._plain(DType.F32, length)
        match statement:
            case Let(op=op, source=source, dtype=dtype):
                whole = self._vector(replace(plain, op=op, source=source, dtype=dtype))
                return whole - self._access(source, length) - self._access(dtype, length)
            case Random():
                whole = self._vector(replace(plain, op=Op.PHILOX, source=DType.I64))
                return whole - self._access(DType.F32, length)
            case Load(buffer=buffer, index=index):
                strided = replace(self._plain(buffer.dtype, length), step=_step(index, lanes.loop))
                return self._vector(strided) - 2 * self._access(buffer.dtype, length)
            case Store(buffer=buffer):
                return self._access(buffer.dtype, length)
            case Accumulate(accumulator=name) if self.accumulators[name].across:
                init = self.accumulators[name]
                return self._reduction(replace(plain, op=init.op), init.dtype)
            case AccumulateInto(op=op, dtype=dtype, positions=None):
                narrow = min(length, MOST_COLUMNS)
                columns = replace(self._plain(dtype, narrow), op=op, across=False)
                return self._reduction(columns, dtype)
        raise _NotMeasured

    def _reduction(self, probe: OperationProbe, dtype: DType) -> float:
        result = DType.I64 if OPS[probe.op].result is ResultType.INDEX else dtype
        probe = replace(probe, source=dtype, dtype=result)
        return self._vector(probe) - self._access(dtype, probe.length)

    def _access(self, dtype: DType, length: int) -> float:
        """Seconds of a vector's load or store: the plainest kernel has both and one operation."""
        return self._vector(self._plain(dtype, length)) / 3

    def _vector(self, probe: OperationProbe) -> float:
        """Seconds of a vector of all that a probe does."""
        return self._without_launch(probe) / (probe.rows * ceil(probe.length / probe.lanes))

    def _without_launch(self, probe: OperationProbe) -> float:
        launch = self._launch
        if probe not in self.measured or launch not in self.measured:
            raise _NotMeasured
        return max(0.0, self.measured[probe] - self.measured[launch])

    @property
    def _launch(self) -> OperationProbe:
        """Of one vector: nearly nothing but a launch."""
        return self._plain(DType.F32, 1, rows=1)

    def _plain(self, dtype: DType, length: int, rows: int | None = None) -> OperationProbe:
        op = Op.NOT if dtype.kind is TypeKind.BOOL else Op.NEG
        return OperationProbe(
            op, dtype, dtype, rows or ELEMENTS // length, length, self.machine.lanes
        )


def _nominal(statement: Stmt) -> float:
    if isinstance(statement, Let):
        return OPS[statement.op].flops
    if isinstance(statement, Scan):
        return SCAN_FLOPS
    return RANDOM_FLOPS if isinstance(statement, Random) else 1.0


def _step(index: Index, loop: Loop) -> int:
    """Of a load from a lane to the next; where lanes compute their own, that may be anywhere."""
    found = expand(index)
    step = found.coefficient(loop.axis)
    computed = {variable.name for variable, _ in found.terms if isinstance(variable, Computed)}
    is_own = any(getattr(statement, "name", None) in computed for statement in loop.body)
    if is_own or not isinstance(step, int):
        return MOST_STEP
    return min(_power_of_two(abs(step)), MOST_STEP)


def _power_of_two(number: int) -> int:
    """The least that is not below; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0
