"""The estimated time of a kernel, from the machine's numbers or its measurements. It ranks plans,
as FusionStitching's latency evaluator does (2020, section 4.3), before there is machine code.

A phase takes the time of its memory traffic or of its busiest task's arithmetic, whichever is
longer. Launches and grid-wide barriers are added. `latency` makes an estimate from machine code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, prod

from hemstitch.ir.dims import evaluate
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    AccumulateMatmul,
    Begin,
    Contract,
    Kernel,
    Loop,
    Nest,
    Phase,
    Stmt,
)
from hemstitch.kernel_ir.traffic import phase_traffic, reread_bytes, traffic
from hemstitch.machine.record import Machine
from hemstitch.stitching.costs import Costs, LoopContext
from hemstitch.stitching.lane_models import model_of


def kernel_seconds(kernel: Kernel, machine: Machine, hints: Mapping[str, int]) -> float:
    """Seconds of one call, the launch included."""
    sizes = {**hints, "threads": machine.threads}
    costs = Costs.of(kernel, machine)
    total = costs.launch_seconds()
    for phase in kernel.phases:
        read, written = phase_traffic(phase, sizes)
        memory = costs.memory_seconds(sum(read.values()) + sum(written.values()))
        total += max(memory, _arithmetic_seconds(phase, costs, sizes))
    waits = {Begin.BARRIER: 1.0, Begin.LAST_BLOCK: machine.arrival_share, Begin.ALONE: 0.0}
    return total + machine.barrier_seconds * sum(waits[p.begin] for p in kernel.phases[1:])


def least_seconds(
    kernel: Kernel, machine: Machine, hints: Mapping[str, int], kernels: int
) -> float:
    """A lower bound for so many kernels that compute the same: their launches, and each byte of
    arguments and results once."""
    sizes = {**hints, "threads": machine.threads}
    read, written = traffic(kernel, sizes)
    costs, parameters = Costs.of(kernel, machine), kernel.parameters
    moved = sum(read.get(b, 0) + written.get(b, 0) for b in parameters) - reread_bytes(
        kernel, sizes
    )
    return kernels * costs.launch_seconds() + costs.memory_seconds(max(0, moved))


def _arithmetic_seconds(phase: Phase, costs: Costs, sizes: Mapping[str, int]) -> float:
    """Of the busiest task. Nests share the tasks, so that the average counts where it is more."""
    tasks = 1 if phase.is_alone else costs.machine.threads
    busiest = all_tasks = 0.0
    for nest in phase.nests:
        rows = ceil(
            prod(evaluate(axis.extent, sizes) for axis in nest.rows)
            / model_of(costs.machine).rows_of_a_vector(nest, costs.machine, sizes)
        )
        prologue, row = _work_of(nest, costs, sizes)
        busiest = max(busiest, prologue + ceil(rows / tasks) * row)
        all_tasks += tasks * prologue + rows * row
    return max(busiest, all_tasks / tasks) / costs.machine.operations_per_second


def _work_of(nest: Nest, costs: Costs, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Vector instructions of the prologue, and of each row."""
    return _work(nest.prologue, costs, sizes), _work(nest.body, costs, sizes)


def _work(
    statements: Iterable[Stmt],
    costs: Costs,
    sizes: Mapping[str, int],
    lanes: LoopContext | None = None,
) -> float:
    machine, total = costs.machine, 0.0
    for statement in statements:
        if isinstance(statement, (Contract, AccumulateMatmul)) and machine.matrix_units:
            total += _multiplications(statement, machine, sizes)
        elif isinstance(statement, BLOCKS):
            extent = evaluate(statement.axis.extent, sizes)
            wide = (
                isinstance(statement, Loop) and statement.lanes and LoopContext(statement, extent)
            )
            steps = ceil(extent / machine.lanes) if wide else extent
            total += steps * _work(statement.body, costs, sizes, wide or lanes)
        total += costs.instructions(statement, lanes)
    return total


def _multiplications(
    matmul: Contract | AccumulateMatmul, machine: Machine, sizes: Mapping[str, int]
) -> float:
    """The cost of one vector of matmul results, with a task's share of the matrix units."""
    units = machine.matrix_units[matmul.source]
    work = 2 * evaluate(matmul.axis.extent, sizes) * machine.lanes
    return units.seconds(work * machine.threads) * machine.operations_per_second
