"""One graph through the pipeline: `begin` in the tracing thread, then `finish` in any thread."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hemstitch.capture.device_target import target_of
from hemstitch.capture.result_aliasing import TRACED, Results
from hemstitch.capture.translation import Captured, TracedGraph, capture
from hemstitch.driver.builds import build_first_buildable
from hemstitch.driver.call_list import assemble
from hemstitch.ir.graph import Graph
from hemstitch.ir.verifier import verify
from hemstitch.machine.record import Machine
from hemstitch.measure.matmul_units import measured_units
from hemstitch.measure.performance_library import measurements
from hemstitch.options import Options
from hemstitch.pipeline import GRAPH, PIPELINES, PROGRAM, Compilation, run_stages, stages_to
from hemstitch.planning.plan import Plan
from hemstitch.planning.program import Program
from hemstitch.runtime.assembly import Launch
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.gpu_facts import has_full_f32_matmul, multiprocessors
from hemstitch.runtime.prepacked import PrepackedWeights
from hemstitch.runtime.returned import Result
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.toolchain.jit import host_target, threads_now


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph after all stages: the captured graph, the rewritten one, its program and executable.

    `target`: "cpu", "cuda" or "interpret"; `machine`: the model that the plan is for. `launches`:
    one for each step of the plan. With `plan_only` there are none, and `executable` is None.
    """

    captured: Captured
    graph: Graph
    program: Program[Plan]
    target: str
    machine: Machine
    launches: tuple[Launch | None, ...]
    executable: Executable | None

    @property
    def plan(self) -> Plan:
        """What each call runs; prepacking is not part of it."""
        return self.program.each_call


@dataclass(frozen=True, slots=True)
class PendingGraph:
    """A captured graph that is not compiled yet, with the machine model of the time of tracing.
    `arguments`: the number of arguments of a call; `target`: as in `Compiled`; `is_backward`:
    saved activations are freed as it runs, and gradients take their memory. `is_training`: it is
    forward or backward of a step of training."""

    captured: Captured
    arguments: int
    target: str
    machine: Machine
    is_backward: bool
    is_training: bool

    @property
    def all_arguments(self) -> int:
        """The number of arguments, constants included."""
        return self.arguments + len(self.captured.constants)


def begin(
    traced: TracedGraph,
    example_inputs: Sequence[object],
    options: Options,
    private: int | None = None,
    is_backward: bool = False,
    frozen: Collection[int] = (),
    results: Results = TRACED,
) -> PendingGraph:
    """Capture one functional ATen graph of AOTAutograd.

    `private`: the number of its results that the user sees; the others are saved for backward.
    `frozen`: the arguments that are frozen weights.
    """
    captured = capture(traced, example_inputs, private, frozen, results)
    target = target_of(captured.device, options)
    machine = machine_for(target, multiprocessors(captured.device))
    machine = replace(machine, has_grid_barrier=options.global_stitching)
    if target == "cpu":
        machine = replace(machine, matrix_units=measured_units(machine.threads, machine.lanes))
    if target == "cpu" and options.tune:
        machine = replace(machine, measured=measurements())
    is_training = is_backward or private is not None
    return PendingGraph(captured, len(example_inputs), target, machine, is_backward, is_training)


def finish(pending: PendingGraph, options: Options, *, plan_only: bool = False) -> Compiled:
    """Run the remaining stages, in any thread.

    `plan_only`: stop before kernels are built, for a device that is absent.
    """
    captured, builder = pending.captured, pending.captured.builder
    compilation = Compilation(
        *(builder, options, pending.machine, pending.all_arguments, host_target()),
        is_training=pending.is_training,
    )
    stages = PIPELINES[pending.target]
    if options.check:
        verify(captured.graph)
    graph = run_stages(stages_to(stages, GRAPH), captured.graph, compilation, options.check)
    program = run_stages(stages_to(stages, PROGRAM), graph, compilation, options.check)
    if plan_only:
        return Compiled(captured, graph, program, pending.target, pending.machine, (), None)
    options = replace(options, target=pending.target)
    program, launches = build_first_buildable(program, options, captured.device)
    executable = _executable(program, launches, pending, options)
    target, machine = pending.target, pending.machine
    return Compiled(captured, graph, program, target, machine, tuple(launches[0]), executable)


def _executable(
    program: Program[Plan],
    launches: Sequence[Sequence[Launch | None]],
    pending: PendingGraph,
    options: Options,
) -> Executable:
    captured, arguments, stages = pending.captured, pending.all_arguments, []
    for part, its_launches in zip(program.before, launches[1:]):
        results = [Result(number) for number in range(len(part.outputs))]
        assembly = assemble(part, its_launches, results, arguments, captured.device)
        stages.append(Executable(assembly, {}, (), recycle=False))
        arguments += len(results)
    plan = program.each_call
    assembly = assemble(plan, launches[0], captured.returns, arguments, captured.device)
    weights = {p for part in program.before for p in part.arguments if p < pending.all_arguments}
    return Executable(
        *(assembly, plan.graph.symbols, captured.constants, options.recycle, pending.is_backward),
        PrepackedWeights(stages, sorted(weights), plan.arguments) if stages else None,
    )


def machine_for(target: str, multiprocessors: int | None) -> Machine:
    """The machine model for planning. It has as many threads as `torch.set_num_threads` says now.
    `multiprocessors`: None for an absent GPU."""
    if target == "cpu":
        return generic_cpu(threads_now(), host_target().lanes)
    exact = has_full_f32_matmul()
    if multiprocessors is None:
        return generic_gpu(exact_matmuls=exact)
    return generic_gpu(multiprocessors, exact_matmuls=exact)
