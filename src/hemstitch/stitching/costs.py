"""The cost of parts of a kernel: measured where the machine has measurements, else nominal. Takes
statements and bytes, gives vector instructions and seconds.

A probe is a kernel with a load, a store and a launch around its operation. Their cost is
subtracted, so that the costs of several operations add up to the time of a kernel with all of them.
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
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.probes import OperationProbe, Probe
from hemstitch.machine.record import Machine

# Sizes of probes:
ELEMENTS = 2048  # of a probe, so that operand and result stay in L1
MOST_LENGTH = 1024  # of a probe's row; longer ones cost the same per vector
MOST_COLUMNS = 64  # of a probe of column sums, so that it has enough rows
MOST_STEP = CPU.line_bytes // DType.F32.bytes  # elements: one per cache line
LEAST_COPY, MOST_COPY = 1 << 14, 1 << 27  # bytes moved: from L1 to memory
RANDOM_FLOPS = OPS[Op.PHILOX].flops
SCAN_FLOPS = OPS[Op.CUMSUM].flops


class _NotMeasured(Exception):
    """There is no measurement for an operation."""


@dataclass(frozen=True, slots=True)
class LoopContext:
    """The lane loop around a statement, and its `length` at the example sizes."""

    loop: Loop
    length: int


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one kernel on one machine."""

    machine: Machine
    measured: Mapping[Probe, float]
    accumulators: Mapping[str, Init]

    @staticmethod
    def of(kernel: Kernel, machine: Machine) -> Costs:
        accumulators = {s.name: s for s in statements(kernel) if isinstance(s, Init)}
        return Costs(machine, {} if machine.measured is None else machine.measured, accumulators)

    def launch_seconds(self) -> float:
        """Measured for a single task; with several the measurement would depend on the system's
        load."""
        nominal = self.machine.launch_seconds
        return nominal if self.machine.threads > 1 else self.measured.get(self._launch, nominal)

    def memory_seconds(self, moved: int) -> float:
        """Seconds to move so many bytes: each task copies a share from and to the same level of the
        memory hierarchy."""
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
        """The cost of a statement in vector additions."""
        if lanes is None or self.machine.measured is None:
            return _nominal(statement)
        try:
            seconds = self._seconds(statement, lanes)
        except _NotMeasured:
            return _nominal(statement)
        return max(0.0, seconds) * self.machine.operations_per_second  # noise may make it negative

    def _seconds(self, statement: Stmt, lanes: LoopContext) -> float:
        """Raises _NotMeasured, also for statements without a probe."""
        length = min(_power_of_two(max(1, lanes.length)), MOST_LENGTH)
        plain = self._plain(DType.F32, length)
        match statement:
            case Let(op=op, source=source, dtype=dtype):
                probe_seconds = self._vector(replace(plain, op=op, source=source, dtype=dtype))
                return probe_seconds - self._access(source, length) - self._access(dtype, length)
            case Random():
                probe_seconds = self._vector(replace(plain, op=Op.PHILOX, source=DType.I64))
                return probe_seconds - self._access(DType.F32, length)
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
        """Seconds of a vector's load or store: the plain probe has both and one operation."""
        return self._vector(self._plain(dtype, length)) / 3

    def _vector(self, probe: OperationProbe) -> float:
        """Seconds per vector of a probe."""
        return self._without_launch(probe) / (probe.rows * ceil(probe.length / probe.lanes))

    def _without_launch(self, probe: OperationProbe) -> float:
        launch = self._launch
        if probe not in self.measured or launch not in self.measured:
            raise _NotMeasured
        return max(0.0, self.measured[probe] - self.measured[launch])

    @property
    def _launch(self) -> OperationProbe:
        """A probe with a single vector: nearly the launch alone."""
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
    """The stride of a load along the lanes; MOST_STEP where lanes compute their own indices."""
    linear = expand(index)
    step = linear.coefficient(loop.axis)
    computed = {variable.name for variable, _ in linear.terms if isinstance(variable, Computed)}
    is_own = any(getattr(statement, "name", None) in computed for statement in loop.body)
    if is_own or not isinstance(step, int):
        return MOST_STEP
    return min(_power_of_two(abs(step)), MOST_STEP)


def _power_of_two(number: int) -> int:
    """The next power of two; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0
