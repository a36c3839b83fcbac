"""One graph through the pipeline: `begin` while PyTorch traces, then `finish`, in any thread."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hemstitch.capture.device_target import target_of
from hemstitch.capture.result_aliasing import TRACED, Results
from hemstitch.capture.translation import Captured, TracedGraph, capture
from hemstitch.driver.builds import build_first
from hemstitch.driver.call_list import assemble
from hemstitch.ir.graph import Graph
from hemstitch.ir.verifier import verify
from hemstitch.machine.record import Machine
from hemstitch.measure.multiplication import measured_units
from hemstitch.measure.performance_library import measurements
from hemstitch.options import Options
from hemstitch.pipeline import GRAPH, PIPELINES, PROGRAM, Compilation, run_stages, stages_to
from hemstitch.planning.plan import Plan
from hemstitch.planning.program import Program
from hemstitch.runtime.assembly import Launch
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.gpu_facts import multiplies_exactly, multiprocessors
from hemstitch.runtime.prepacked import Once
from hemstitch.runtime.returned import Result
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.toolchain.jit import host_target, threads_now


@dataclass(frozen=True, slots=True)
class Compiled:
    """One graph through all stages: what was captured, what it became, what runs.

    `target`: what its kernels are made for, "cpu", "cuda" or "interpret"; `machine`: what it
    was planned for. `launches`: of the plan's steps; none, and `executable` None, where only a plan
    was asked for.
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
        """Of each call."""
        return self.program.each_call


@dataclass(frozen=True, slots=True)
class Begun:
    """What there is to know of one graph while PyTorch traces, and of the machine as it is used
    now. `arguments`: how many a call brings; `target`: as in `Compiled`; `is_backward`: it runs
    while what forward has saved is let go, bit by bit, and leaves gradients there."""

    captured: Captured
    arguments: int
    target: str
    machine: Machine
    is_backward: bool

    @property
    def own(self) -> int:
        """How many arguments there are, with the constants."""
        return self.arguments + len(self.captured.constants)


def begin(
    traced: TracedGraph,
    example_inputs: Sequence[object],
    options: Options,
    private: int | None = None,
    is_backward: bool = False,
    frozen: Collection[int] = (),
    results: Results = TRACED,
) -> Begun:
    """One functional ATen graph, as AOTAutograd gives it, in the compiler's own terms.

    `private`: how many of its results the user gets; the others are kept for backward. `frozen`:
    which arguments are weights that stay as they are.
    """
    captured = capture(traced, example_inputs, private, frozen, results)
    target = target_of(captured.device, options)
    machine = machine_for(target, multiprocessors(captured.device))
    machine = replace(machine, has_grid_barrier=options.global_stitching)
    if target == "cpu":
        machine = replace(machine, matrix_units=measured_units(machine.threads, machine.lanes))
    if target == "cpu" and options.tune:
        machine = replace(machine, measured=measurements())
    return Begun(captured, len(example_inputs), target, machine, is_backward)


def finish(begun: Begun, options: Options, *, plan_only: bool = False) -> Compiled:
    """All that is left to do, in any thread: a callable on a list of arguments.

    `plan_only`: stop before kernels are built, for a device that is not there.
    """
    captured, builder = begun.captured, begun.captured.builder
    compilation = Compilation(builder, options, begun.machine, begun.own, host_target())
    stages = PIPELINES[begun.target]
    if options.check:
        verify(captured.graph)
    graph = run_stages(stages_to(stages, GRAPH), captured.graph, compilation, options.check)
    program = run_stages(stages_to(stages, PROGRAM), graph, compilation, options.check)
    if plan_only:
        return Compiled(captured, graph, program, begun.target, begun.machine, (), None)
    options = replace(options, target=begun.target)
    program, launches = build_first(program, options, captured.device)
    executable = _executable(program, launches, begun, options)
    own = begun.target, begun.machine, tuple(launches[0])
    return Compiled(captured, graph, program, *own, executable)


def _executable(
    program: Program[Plan],
    launches: Sequence[Sequence[Launch | None]],
    begun: Begun,
    options: Options,
) -> Executable:
    captured, arguments, stages = begun.captured, begun.own, []
    for part, its_launches in zip(program.before, launches[1:]):
        results = [Result(number) for number in range(len(part.outputs))]
        assembly = assemble(part, its_launches, results, arguments, captured.device)
        stages.append(Executable(assembly, {}, (), recycle=False))
        arguments += len(results)
    plan = program.each_call
    assembly = assemble(plan, launches[0], captured.returns, arguments, captured.device)
    weights = {p for part in program.before for p in part.arguments if p < begun.own}
    return Executable(
        *(assembly, plan.graph.symbols, captured.constants, options.recycle, begun.is_backward),
        Once(stages, sorted(weights), plan.arguments) if stages else None,
    )


def machine_for(target: str, multiprocessors: int | None) -> Machine:
    """What plans are made for. The processor is as it is used now: plans adapt to
    `torch.set_num_threads`. `multiprocessors`: of a GPU that is there."""
    if target == "cpu":
        return generic_cpu(threads_now(), host_target().lanes)
    exact = multiplies_exactly()
    if multiprocessors is None:
        return generic_gpu(exact_matmuls=exact)
    return generic_gpu(multiprocessors, exact_matmuls=exact)
