"""What kernels take by measurements: each probe is a kernel of the operation that it stands for,
and probes add up to kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

import pytest

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Address, Graph, Op, Output
from hemstitch.ir.ops import OPS, ResultType, is_elementwise, is_reduction
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.machine.probes import OperationProbe, Probe
from hemstitch.machine.record import Machine
from hemstitch.measure.timing import graph_of
from hemstitch.options import Options
from hemstitch.planning.planner import make_plan
from hemstitch.stitching.costs import MOST_STEP, Costs
from hemstitch.stitching.kernel_estimate import kernel_seconds
from hemstitch.targets.cpu.description import generic_cpu
from tests.graphs import single

LAUNCH, ACCESS = 1e-7, 1e-9  # seconds of a call, and of a vector's load, store or negation
# What is not measured takes no time.
MACHINE = replace(generic_cpu(threads=1, lanes=8), operations_per_second=1e30)
ON_BOOLS = (Op.NOT, Op.AND, Op.OR, Op.XOR, Op.ANY, Op.ALL)
ON_INTEGERS = (Op.SHL, Op.SHR, Op.TRUNCDIV, Op.FLOORDIV)


class Clock(Mapping[Probe, float]):
    """Times of the test's, and what was asked for. `extra`: seconds of a vector of an operation,
    a load and a store around it; of others it is that of a negation."""

    def __init__(self, **extra: float) -> None:
        self.extra = extra
        self.asked: set[OperationProbe] = set()

    def __getitem__(self, probe: OperationProbe) -> float:
        self.asked.add(probe)
        each = self.extra.get(probe.op.value, 3 * ACCESS)
        vectors = probe.rows * ceil(probe.length / probe.lanes)
        return LAUNCH + vectors * (each if probe.rows > 1 or probe.length > 1 else 0.0)

    def __iter__(self) -> Iterator[OperationProbe]:
        return iter(self.asked)

    def __len__(self) -> int:
        return len(self.asked)


def probe_of(op: Op, rows: int, length: int, **more: object) -> OperationProbe:
    source = DType.BOOL if op in ON_BOOLS else DType.I32 if op in ON_INTEGERS else DType.F32
    types = {ResultType.BOOL: DType.BOOL, ResultType.INDEX: DType.I64}
    result = DType.F64 if op is Op.CAST else types.get(OPS[op].result, source)
    return OperationProbe(op, source, result, rows, length, MACHINE.lanes, **more)


def kernel_of(graph: Graph) -> Kernel:
    (step,) = make_plan(graph, MACHINE, Options()).kernels
    return step.stitched.kernel


def seconds(kernel: Kernel, clock: Clock) -> float:
    return kernel_seconds(kernel, replace(MACHINE, measured=clock), {})


PROBES = [
    *(probe_of(op, 8, 256) for op in OPS if is_elementwise(op) and op is not Op.CHECK),
    *(probe_of(op, 8, 256) for op in OPS if is_reduction(op)),
    *(probe_of(op, 32, 64, across=False) for op in (Op.SUM, Op.MAX)),
    *(probe_of(Op.NEG, 2048 // length, length) for length in (2, 4, 32, 1024)),
    *(probe_of(Op.NEG, 8, 256, step=step) for step in (2, 4, 16)),
    OperationProbe(Op.PHILOX, DType.I64, DType.F32, 8, 256, MACHINE.lanes),
]


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: f"{p.op.value}-{p.length}-{p.step}")
def test_the_kernel_of_a_probe_asks_for_it(probe):
    """So it does the operation in the way that the key says."""
    if not probe.across:
        probe = replace(probe, source=DType.F64, dtype=DType.F64)
    clock = Clock()
    seconds(kernel_of(graph_of(probe)), clock)
    assert probe in clock.asked


@pytest.mark.parametrize("op", [Op.EXP, Op.WHERE, Op.LT, Op.SUM])
def test_the_model_gives_back_what_was_measured(op):
    clock, probe = Clock(**{op.value: 50 * ACCESS}), probe_of(op, 8, 256)
    assert seconds(kernel_of(graph_of(probe)), clock) == pytest.approx(clock[probe])


def test_probes_add_up():
    """Beside a load and a store, the operations of a kernel."""
    build = Builder()
    x = build.input("x", 0, (8, 256), DType.F32, (300, 1))
    value = build.make(Op.TANH, build.make(Op.EXP, build.make(Op.EXP, x)))
    kernel = kernel_of(Graph((x,), (Output(value, (256, 1)),)))
    clock = Clock(exp=(10 + 2) * ACCESS, tanh=(20 + 2) * ACCESS)
    vectors = 8 * 256 // MACHINE.lanes
    assert seconds(kernel, clock) == pytest.approx(LAUNCH + vectors * (2 * 10 + 20 + 2) * ACCESS)


def test_an_empty_kernel_takes_a_launch():
    build = Builder()
    x = build.input("x", 0, (0,), DType.F32, (1,))
    kernel = kernel_of(Graph((x,), (Output(build.make(Op.EXP, x), (1,)),)))
    assert seconds(kernel, Clock()) == pytest.approx(LAUNCH)


def test_what_lanes_compute_may_be_anywhere():
    """A row of a table that all lanes read is as good as any other row."""
    build = Builder()
    table = build.input("x", 0, (512, 256), DType.F32, (256, 1))
    index = build.input("i", 1, (8,), DType.I64, (1,))
    rows = build.broadcast(build.reshape(index, (8, 1)), (8, 256))
    columns = build.input("j", 2, (8, 256), DType.I64, (300, 1))
    for found, step in ((rows, 1), (columns, MOST_STEP)):
        addresses = (Address(operand=1), Address(axis=1))
        picked = build.gather(table, [found], addresses, (8, 256))
        clock = Clock()
        seconds(kernel_of(single(build, picked)), clock)
        steps = [probe.step for probe in clock.asked if probe.source is DType.F32]
        assert max(steps) == step


def costs(machine: Machine) -> Costs:
    return Costs(machine, Clock(), {})


def test_memory_is_as_fast_as_a_copy_of_that_size():
    vector = 2 * 4 * MACHINE.lanes  # bytes that a copy moves
    for moved in (1 << 20, 3 << 20, 1 << 30):
        expected = pytest.approx(moved / vector * 3 * ACCESS)
        assert costs(MACHINE).memory_seconds(moved) == expected
    nominal = (1 << 20) / MACHINE.memory_bytes_per_second
    assert Costs(MACHINE, {}, {}).memory_seconds(1 << 20) == nominal


def test_tasks_share_the_copying():
    """And of memory's bandwidth there is only so much."""
    alone, many = costs(MACHINE), costs(replace(MACHINE, threads=64))
    assert many.memory_seconds(1 << 24) == pytest.approx(alone.memory_seconds(1 << 24) / 64)
    assert many.memory_seconds(1 << 30) == pytest.approx(
        alone.memory_seconds(1 << 30) / MACHINE.bandwidth_threads
    )


def test_a_launch_of_several_tasks_is_not_measured():
    for threads, expected in ((1, LAUNCH), (2, MACHINE.launch_seconds)):
        assert costs(replace(MACHINE, threads=threads)).launch_seconds() == expected
