"""Graphs through the compiler's core: planned for any machine, run by the kernel interpreter or as
machine code, compared with what the graph means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from hemstitch.backend import compile_with
from hemstitch.driver.builds import build
from hemstitch.driver.call_list import assemble
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph
from hemstitch.ir.types import DType
from hemstitch.kernel_ir import interpreter as kernel_interpreter
from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.machine.record import Machine
from hemstitch.options import Options
from hemstitch.planning.cached_plan import CachedPlan
from hemstitch.planning.plan import KernelStep, LibraryStep, Plan, Step
from hemstitch.planning.planner import make_plan
from hemstitch.planning.prepacking import prepack
from hemstitch.planning.verifier import verify_plan
from hemstitch.report.explain import Report, _record
from hemstitch.runtime import interpreter as interpret
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.returned import Result
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES
from hemstitch.stitching.group import Group, Tensor
from hemstitch.stitching.phase_begin import with_begins
from hemstitch.stitching.stitcher import stitch
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import host_target
from tests.lowered import until_blocking


def plan_for(graph: Graph, machine: Machine, planner: str = "auto", *, alone: bool = False) -> Plan:
    """A checked plan. `alone`: one task runs what it can of each kernel, whatever it takes."""
    plan = make_plan(graph, machine, Options(planner=planner))
    for step in plan.kernels:
        assert_stitched(step, machine)
    assert_made_again(plan, graph, machine, planner)
    if alone:
        plan = replace(plan, steps=tuple(_with_tickets(step, machine) for step in plan.steps))
    verify_plan(plan)
    for step in plan.kernels:
        verify(step.stitched.kernel)
    return plan


def assert_stitched(step: KernelStep, machine: Machine) -> None:
    """The kernel is what stitching its groups gives, though it may have been made for others."""
    fresh, kernel = stitch(step.groups, machine, "fresh"), step.stitched.kernel
    assert show(replace(fresh.kernel, name=kernel.name)) == show(kernel)
    assert (fresh.tensors, fresh.places) == (step.stitched.tensors, step.stitched.places)


def assert_made_again(plan: Plan, graph: Graph, machine: Machine, planner: str) -> None:
    """From its decisions, though they were written down in between."""
    cached = CachedPlan.parse(json.loads(json.dumps(plan.cached_plan.record)))
    assert cached == plan.cached_plan
    again = make_plan(graph, machine, Options(planner=planner), cached)
    assert again.cached_plan == cached
    texts = ([show(step.stitched.kernel) for step in each.kernels] for each in (plan, again))
    assert next(texts) == next(texts)


def _with_tickets(step: Step, machine: Machine) -> Step:
    if not isinstance(step, KernelStep):
        return step
    kernel, dear = step.stitched.kernel, replace(machine, barrier_seconds=1e3)
    phases = with_begins([p.nests for p in kernel.phases], dear, step.groups[0].hints)
    return replace(step, stitched=replace(step.stitched, kernel=replace(kernel, phases=phases)))


def plans_of(
    function: Callable[..., Any], arguments: Sequence[Any], machine: Machine, backward: bool = False
) -> list[tuple[Graph, Plan]]:
    """Each graph that torch.compile makes of a program, planned for this machine."""
    found: list[tuple[Graph, Plan]] = []

    def observe(kind: str, compiled: Compiled) -> None:
        found.append((compiled.graph, plan_for(compiled.graph, machine)))

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        options = Options(cache=False, strict=True, check=True)
        return compile_with(gm, inputs, options, observe, plan_only=True)

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:  # nothing is computed
        fake = tree_map_only(torch.Tensor, partial(_faked, mode), arguments)
        result = torch.compile(function, backend=backend)(*fake)
        if backward:
            result.sum().backward()
    return found


def _faked(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """With what `mark_dynamic` wrote on it."""
    fake = mode.from_tensor(tensor)
    vars(fake).update(vars(tensor))
    return fake


def with_kernels(plan: Plan, change: Callable[[Kernel], Kernel]) -> Plan:
    """The plan whose kernels are those that `change` gives, which the verifier takes."""
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            kernel = change(step.stitched.kernel)
            verify(kernel)
            step = replace(step, stitched=replace(step.stitched, kernel=kernel))
        steps.append(step)
    return replace(plan, steps=tuple(steps))


class Simulation:
    """Runs a plan's kernels in the kernel interpreter, on memory of its own."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        threads: int,
        order: Sequence[int] | None = None,
        precise: bool = True,
        lanes: int | None = None,
    ) -> None:
        self.sizes, self.threads, self.order, self.precise = sizes, threads, order, precise
        self.lanes = lanes
        self.memory: dict[Tensor, torch.Tensor] = {}

    def run(
        self, graph: Graph, plan: Plan, arguments: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The values of the graph's outputs; no argument is written to."""
        self.arguments = arguments
        for step in plan.steps:
            assert not isinstance(step, LibraryStep)
            if isinstance(step, KernelStep):
                self._kernel(step)
            else:
                self._library_form(step.group)
        return [self._view(a.tensor, a.shape, a.strides, a.offset).clone() for a in plan.outputs]

    def _flat(self, tensor: Tensor) -> torch.Tensor:
        if tensor not in self.memory:
            dtype = TORCH_DTYPES[tensor.node.type.dtype]
            if self.precise and dtype.is_floating_point:
                dtype = torch.float64
            shape = [evaluate(size, self.sizes) for size in tensor.node.shape]
            strides = [evaluate(step, self.sizes) for step in tensor.strides]
            extent = 1 + sum((size - 1) * step for size, step in zip(shape, strides))
            flat = torch.full((0 if 0 in shape else extent,), 77, dtype=dtype)
            if tensor.is_argument and flat.numel():
                argument = self.arguments[tensor.node.attr.position]
                flat.copy_(argument.as_strided((extent,), (1,)))
            self.memory[tensor] = flat
        return self.memory[tensor]

    def _view(self, tensor, shape, strides, offset=0) -> torch.Tensor:
        shape = [evaluate(size, self.sizes) for size in shape]
        if 0 in shape:
            return self._flat(tensor).new_empty(shape)
        strides = [evaluate(step, self.sizes) for step in strides]
        return self._flat(tensor).as_strided(shape, strides, evaluate(offset, self.sizes))

    def _kernel(self, step: KernelStep) -> None:
        bound = zip(step.stitched.tensors, step.stitched.places)
        arrays = [_array(self._flat(tensor)[place:]) for tensor, place in bound]
        kernel_interpreter.run(
            step.stitched.kernel,
            arrays,
            self.sizes,
            self.threads,
            self.order,
            precise=self.precise,
            check=True,
            lanes=self.lanes,
        )

    def _library_form(self, group: Group) -> None:
        known = {n: self._view(t, n.shape, t.strides).clone() for n, t in group.reads.items()}
        values = interpret._evaluate(
            [write.value for write in group.writes], known, self.sizes, self.precise
        )
        for write in group.writes:
            view = self._view(write.tensor, write.value.shape, write.strides, write.offset)
            view.copy_(values[write.value])


def _array(flat: torch.Tensor) -> np.ndarray:
    return flat.view(torch.uint16).numpy() if flat.dtype is torch.bfloat16 else flat.numpy()


def simulate(
    graph: Graph,
    arguments: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    machine: Machine,
    *,
    planner: str = "auto",
    order: Sequence[int] | None = None,
    alone: bool = False,
) -> list[torch.Tensor]:
    plan = plan_for(graph, machine, planner, alone=alone)
    return Simulation(sizes, machine.threads, order).run(graph, plan, arguments)


def execute(
    graph: Graph,
    arguments: Sequence[torch.Tensor],
    machine: Machine | None = None,
    *,
    planner: str = "auto",
    target: str = "auto",
    alone: bool = False,
) -> list[torch.Tensor]:
    """The kernels' results, and the arguments that they have replaced, in order of outputs."""
    plan = plan_for(graph, machine or generic_cpu(2, 8), planner, alone=alone)
    if target == "auto":
        plan = prepack(plan, until_blocking, host_target().threads).plan
        verify_plan(plan)
    fresh = [sum(o.mutates is None for o in graph.outputs[:k]) for k in range(len(graph.outputs))]
    returns = [Result(k) for k, o in enumerate(graph.outputs) if o.mutates is None]
    launches = build(plan, Options(cache=False, target=target, strict=True, check=True))
    executable = Executable(assemble(plan, launches, returns, len(arguments)), graph.symbols, ())
    given = [_copy(argument) for argument in arguments]
    results = executable(list(given))
    return [
        results[fresh[k]] if output.mutates is None else given[output.mutates.attr.position]
        for k, output in enumerate(graph.outputs)
    ]


def _copy(argument: torch.Tensor) -> torch.Tensor:
    """With the same strides, and memory of its own."""
    flat = argument.as_strided((argument.untyped_storage().nbytes() // argument.itemsize,), (1,), 0)
    return flat.clone().as_strided(argument.shape, argument.stride(), argument.storage_offset())


def has_halves(graph: Graph) -> bool:
    nodes = interpret._missing(graph.roots, {})
    return any(node.type.dtype in (DType.F16, DType.BF16) for node in nodes)


def watched(function: Callable[..., Any], **options: object) -> tuple[Callable[..., Any], Report]:
    """It compiled, and what becomes of it, which is known when it has been called: as `explain`
    tells, without compiling once more."""
    parsed = Options.parse({"strict": True, "check": True, **options}, None)
    report = Report(options=str(parsed))

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        return compile_with(gm, inputs, parsed, partial(_record, report))

    torch._dynamo.reset()
    return torch.compile(function, backend=backend), report


def assert_trains_as_eager(
    program: Callable[..., Any], arguments: Sequence[torch.Tensor], *rest: object
) -> Report:
    """Compiled, in f32, it has the results and gradients that eager has in f64. `rest`: what else
    it takes. Gives what became of it."""
    compiled, report = watched(program)
    wide = [argument.detach().double().requires_grad_() for argument in arguments]
    found, exact = tree_leaves(compiled(*arguments, *rest)), tree_leaves(program(*wide, *rest))
    seeds = [torch.randn_like(result) for result in found]
    gradients = torch.autograd.grad(found, arguments, seeds)
    expected = torch.autograd.grad(exact, wide, [seed.double() for seed in seeds])
    assert_close([*found, *gradients], [*exact, *expected], 1e-5)
    return report


def assert_close(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float
) -> None:
    """Within `tolerance` of the largest element, and of 1."""
    for number, (new, old) in enumerate(zip(found, expected, strict=True)):
        assert new.shape == old.shape, (number, new.shape, old.shape)
        if not old.dtype.is_floating_point:
            assert torch.equal(new.to(old.dtype), old), (number, new, old)
            continue
        a, b = new.double(), old.double()
        assert not a.isnan().any() or b.isnan().any(), f"output {number} has a NaN"
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        error = float((a - b).abs().max()) if b.numel() else 0.0
        assert error <= tolerance * scale, f"output {number}: {error} of {scale}"
