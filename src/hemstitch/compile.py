"""The whole compiler, top to bottom: `begin`, then `finish`. Read this file first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hemstitch.frontend.capture import Captured, TracedGraph, capture
from hemstitch.frontend.convolved import with_laid_weights
from hemstitch.frontend.device import target_of
from hemstitch.frontend.sharing import TRACED, Results
from hemstitch.fusion.packed import packed_once
from hemstitch.fusion.plan import Plan
from hemstitch.fusion.verify import verify_plan
from hemstitch.ir.graph import Graph
from hemstitch.kernel.verify import verify as verify_kernel
from hemstitch.options import Options
from hemstitch.passes.frozen import once_and_rest
from hemstitch.passes.pipeline import optimize
from hemstitch.runtime.assemble import Launch, assemble
from hemstitch.runtime.build import Plans, build_first
from hemstitch.runtime.decided import planned
from hemstitch.runtime.device_facts import multiplies_exactly, multiprocessors
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.jit import host_target, threads_now
from hemstitch.runtime.multiplying import measured_units
from hemstitch.runtime.once import Once
from hemstitch.runtime.performance import measurements
from hemstitch.runtime.returned import Result
from hemstitch.stitch.machine import Machine, generic_cpu, generic_gpu


@dataclass(frozen=True, slots=True)
class Compiled:
    """One graph through all stages: what was captured, what it became, what runs.

    `once`: plans that run before the first call, each on the arguments and what those before it
    gave. `target`: what its kernels are made for, "cpu", "cuda" or "interpret"; `machine`: what it
    was planned for. `launches`: of the plan's steps; none, and `executable` None, where only a plan
    was asked for.
    """

    captured: Captured
    graph: Graph
    plan: Plan
    once: tuple[Plan, ...]
    target: str
    machine: Machine
    launches: tuple[Launch | None, ...]
    executable: Executable | None


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
    machine = replace(machine, meets=options.global_stitching)
    if target == "cpu":
        machine = replace(machine, products=measured_units(machine.threads, machine.lanes))
    if target == "cpu" and options.tune:
        machine = replace(machine, measured=measurements())
    return Begun(captured, len(example_inputs), target, machine, is_backward)


def finish(begun: Begun, options: Options, *, plan_only: bool = False) -> Compiled:
    """All that is left to do, in any thread: a callable on a list of arguments.

    `plan_only`: stop before kernels are built, for a device that is not there.
    """
    captured = begun.captured
    exact = not options.reassociate
    graph = optimize(captured.graph, captured.builder, check=options.check, is_exact=exact)
    choices = _plans(graph, begun, options)
    if options.check:
        _verify(choices)
    if plan_only:
        return Compiled(captured, graph, *choices[0], begun.target, begun.machine, (), None)
    options = replace(options, target=begun.target)
    (plan, once), launches = build_first(choices, options, captured.device)
    executable = _executable(plan, once, launches, begun, options)
    own = begun.target, begun.machine, tuple(launches[0])
    return Compiled(captured, graph, plan, once, *own, executable)


def _plans(graph: Graph, begun: Begun, options: Options) -> list[Plans]:
    """Of each call, with those that run once before it; behind what is preferred what can be built
    in any case."""
    builder = begun.captured.builder
    if begun.target == "cpu":
        multiplies = options.opens_products and bool(begun.machine.products)
        graph = with_laid_weights(graph, builder, multiplies)
    once, rest = once_and_rest(graph, builder, begun.own)
    plan = planned(rest, begun.machine, options)
    before = () if once is None else (planned(once, begun.machine, options),)
    if begun.target != "cpu":
        return [(plan, before)]
    free = begun.own + sum(len(each.outputs) for each in before)
    packed = packed_once(plan, host_target().threads, free)
    packing = () if packed.once is None else (packed.once,)
    return [(packed.plan, (*before, *packing)), (plan, before)]


def _verify(choices: Sequence[Plans]) -> None:
    """What packs computes no graph: of it only kernels are verified."""
    for plan, once in choices:
        verify_plan(plan)
        for each in (plan, *once):
            for step in each.kernels:
                verify_kernel(step.stitched.kernel)


def _executable(
    plan: Plan,
    once: Sequence[Plan],
    launches: Sequence[Sequence[Launch | None]],
    begun: Begun,
    options: Options,
) -> Executable:
    captured, arguments, stages = begun.captured, begun.own, []
    for each, its_launches in zip(once, launches[1:]):
        results = [Result(number) for number in range(len(each.outputs))]
        assembly = assemble(each, its_launches, results, arguments, captured.device)
        stages.append(Executable(assembly, {}, (), recycle=False))
        arguments += len(results)
    assembly = assemble(plan, launches[0], captured.returns, arguments, captured.device)
    weights = {p for each in once for p in each.arguments if p < begun.own}
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
        return generic_gpu(exact_products=exact)
    return generic_gpu(multiprocessors, exact_products=exact)
