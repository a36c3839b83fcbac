"""The whole compiler, top to bottom: `begin`, then `finish`. Read this file first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hemstitch.frontend.capture import Captured, TracedGraph, capture
from hemstitch.frontend.device import target_of
from hemstitch.fusion.packed import packed_once
from hemstitch.fusion.plan import Plan
from hemstitch.fusion.planner import make_plan
from hemstitch.fusion.verify import verify_plan
from hemstitch.ir.graph import Graph
from hemstitch.kernel.verify import verify as verify_kernel
from hemstitch.options import Options
from hemstitch.passes.pipeline import optimize
from hemstitch.runtime.assemble import assemble
from hemstitch.runtime.build import build_either
from hemstitch.runtime.device_facts import multiplies_exactly, multiprocessors
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.jit import host_target, threads_now
from hemstitch.runtime.multiplying import measured_units
from hemstitch.runtime.performance import measurements
from hemstitch.stitch.machine import Machine, generic_cpu, generic_gpu


@dataclass(frozen=True, slots=True)
class Compiled:
    """One graph through all stages: what was captured, what it became, what runs.

    `target`: what its kernels are made for, "cpu", "cuda" or "interpret"; `machine`: what it was
    planned for. `executable`: None where only a plan was asked for.
    """

    captured: Captured
    graph: Graph
    plan: Plan
    target: str
    machine: Machine
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


def begin(
    traced: TracedGraph,
    example_inputs: Sequence[object],
    options: Options,
    private: int | None = None,
    is_backward: bool = False,
) -> Begun:
    """One functional ATen graph, as AOTAutograd gives it, in the compiler's own terms.

    `private`: how many of its results the user gets; the others are kept for backward.
    """
    captured = capture(traced, example_inputs, private)
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
    captured, target = begun.captured, begun.target
    exact = not options.reassociate
    graph = optimize(captured.graph, captured.builder, check=options.check, is_exact=exact)
    plan = make_plan(graph, begun.machine, options)
    shared = packed_once(plan, host_target().threads) if target == "cpu" else plan
    if options.check:
        for each in (plan, shared):
            verify_plan(each)
            for step in each.kernels:
                verify_kernel(step.stitched.kernel)
    if plan_only:
        return Compiled(captured, graph, shared, target, begun.machine, None)
    options = replace(options, target=target)
    plan, launches = build_either(shared, plan, options, captured.device)
    arguments = begun.arguments + len(captured.constants)
    assembly = assemble(plan, launches, captured.returns, arguments, captured.device)
    executable = Executable(
        assembly, graph.symbols, captured.constants, options.recycle, begun.is_backward
    )
    return Compiled(captured, graph, plan, target, begun.machine, executable)


def machine_for(target: str, multiprocessors: int | None) -> Machine:
    """What plans are made for. The processor is as it is used now: plans adapt to
    `torch.set_num_threads`. `multiprocessors`: of a GPU that is there."""
    if target == "cpu":
        return generic_cpu(threads_now(), host_target().lanes)
    exact = multiplies_exactly()
    if multiprocessors is None:
        return generic_gpu(exact_products=exact)
    return generic_gpu(multiprocessors, exact_products=exact)
