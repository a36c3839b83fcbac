"""The whole compiler, top to bottom. Read this file first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hemstitch.frontend.capture import Captured, TracedGraph, capture
from hemstitch.fusion.plan import Plan
from hemstitch.fusion.planner import make_plan
from hemstitch.fusion.verify import verify_plan
from hemstitch.ir.graph import Graph
from hemstitch.kernel.verify import verify as verify_kernel
from hemstitch.options import Options
from hemstitch.passes.pipeline import optimize
from hemstitch.runtime.assemble import assemble
from hemstitch.runtime.build import build
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.jit import host_target, threads_now
from hemstitch.stitch.machine import Machine, generic_cpu, generic_gpu


@dataclass(frozen=True, slots=True)
class Compiled:
    """One graph through all stages: what was captured, what it became, what runs."""

    captured: Captured
    graph: Graph
    plan: Plan
    executable: Executable


def compile_graph(
    traced: TracedGraph,
    example_inputs: Sequence[object],
    options: Options,
    private: int | None = None,
) -> Compiled:
    """One functional ATen graph, as AOTAutograd gives it, to a callable on a list of arguments.

    `private`: how many of its results the user gets; the others are kept for backward.
    """
    captured = capture(traced, example_inputs, private)
    graph = optimize(captured.graph, captured.builder, check=options.check)
    plan = make_plan(graph, machine_for(options), options)
    if options.check:
        verify_plan(graph, plan)
        for step in plan.kernels:
            verify_kernel(step.stitched.kernel)
    launches = build(plan, options)
    arguments = len(example_inputs) + len(captured.constants)
    assembly = assemble(plan, launches, captured.returns, arguments)
    executable = Executable(assembly, graph.symbols, captured.constants, options.recycle)
    return Compiled(captured, graph, plan, executable)


def machine_for(options: Options) -> Machine:
    """What plans are made for. The processor is as it is used now: plans adapt to
    `torch.set_num_threads`."""
    if options.target == "interpret":
        return generic_gpu()
    return generic_cpu(threads_now(), host_target().lanes)
