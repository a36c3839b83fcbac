"""One model in a process of its own, planned for an answer and for a step of training: which stages
and rules changed something, and what the program costs without each of them."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from benchmarks.zoo.model import Model, NotBuilt, first_that_runs
from benchmarks.zoo.row import How, library, ready, results_of
from hemstitch import pipeline
from hemstitch.backend import compile_with
from hemstitch.driver import cpu_kernels
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.calls import Operand
from hemstitch.ir.dims import evaluate, product
from hemstitch.ir.graph import Node, call_of
from hemstitch.joint.joint_graph import JointGraph
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Contract,
    Kernel,
    Let,
    Stmt,
)
from hemstitch.kernel_ir.traffic import traffic
from hemstitch.options import Options
from hemstitch.pipeline import CPU_LOWERING, JOINT, KERNEL, PROGRAM, TEXT, TRACED, Stage
from hemstitch.planning.plan import KernelStep, LibraryStep
from hemstitch.rewrites import engine
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.toolchain.jit import threads_now

THREADS = 2
IN_PLACE = (TRACED, JOINT)


@dataclass(slots=True)
class Cost:
    """Of a program: what is launched, bytes that it moves, and operations, of kernels and calls."""

    launches: int = 0
    bytes: int = 0
    operations: int = 0

    def of(self, other: Cost) -> tuple[int, int, int]:
        """How much more the other one costs."""
        return (
            other.launches - self.launches,
            other.bytes - self.bytes,
            other.operations - self.operations,
        )


@dataclass(slots=True)
class Watch:
    """`fired`: how often a stage or rule changed something, by its name. `without`: the stage that
    is left out. `compiled`: the graphs."""

    without: str = ""
    fired: Counter[str] = field(default_factory=Counter)
    compiled: list[Compiled] = field(default_factory=list)

    def snapshots(
        self, stages: Iterable[Stage], form: Any, told: object, check: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """As `pipeline.snapshots`."""
        for stage in stages:
            if not stage.runs(told) or (stage.name == self.without and stage.gives is not TEXT):
                continue
            before = _state(form) if stage.gives in IN_PLACE else form
            result = stage.run(form, told)
            form = form if stage.gives is TRACED else result
            if _has_changed(stage, before, form):
                self.fired[stage.name] += 1
            yield stage.name, form

    def applied(self, sweep: Any, rule: engine.Rule, node: Node) -> Node | None:
        """As the engine's."""
        replacement = rule.function(sweep.builder, node)
        if replacement is not None and replacement is not node:
            self.fired[f"rule {rule.name}"] += 1
        return replacement

    def cost(self) -> Cost:
        cost = Cost()
        for compiled in self.compiled:
            for step in compiled.plan.steps:
                cost.launches += 1
                if isinstance(step, KernelStep):
                    *_, kernel = (k for k in lowered(step, "") if isinstance(k, Kernel))
                    _add_kernel(cost, kernel, compiled.graph.hints)
                elif isinstance(step, LibraryStep):
                    _add_call(cost, step, compiled.graph.hints)
        return cost


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """The pipeline tells `watch`."""
    places: Sequence[tuple[Any, str, object]] = (
        (pipeline, "snapshots", watch.snapshots),
        (cpu_kernels, "snapshots", watch.snapshots),
        (engine._RewriteSweep, "_applied", lambda *arguments: watch.applied(*arguments)),
    )
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(places, before):
            setattr(owner, name, value)


def covered(package: str, name: str, how: How) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(how.threads)
    warnings.simplefilter("ignore")
    try:
        model = first_that_runs(library(package).attempts(name))
    except NotBuilt as error:
        yield {"built": False, "why": str(error)}
        return
    yield {"built": True}
    for phase in how.phases:
        model = Model(ready(model.module, phase), model.inputs)
        watch, kernel_stages = planned(model), Counter[str]()
        gains: dict[str, tuple[int, int, int]] = {}
        needed: set[str] = set()
        for compiled in watch.compiled:
            for step in compiled.plan.kernels:
                _count_kernel(step, compiled, kernel_stages, gains, needed)
        cost = watch.cost()
        yield {
            phase: {
                "fired": dict(watch.fired),
                "kernel_stages": dict(kernel_stages),
                "cost": (cost.launches, cost.bytes, cost.operations),
                "gains": gains | _gains(model, watch, cost, needed),
                "needed": sorted(needed),
            }
        }


def planned(model: Model, without: str = "") -> Watch:
    """Its graphs, planned and not built: the model runs as it was traced."""
    watch = Watch(without)
    torch._dynamo.reset()

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        # A graph that fell back would cost nothing.
        options = Options.parse({"cache": False, "strict": True}, None)
        return compile_with(
            gm, inputs, options, lambda _, compiled: watch.compiled.append(compiled), True
        )

    with watching(watch):
        results_of(model, torch.compile(model.module, backend=backend))
    torch._dynamo.reset()
    return watch


def _gains(
    model: Model, watch: Watch, cost: Cost, needed: set[str]
) -> dict[str, tuple[int, int, int]]:
    """What the program costs more without a stage, of those that found something. `needed`: takes
    the stages without which nothing compiles."""
    names = [
        stage.name
        for stage in (*pipeline.BEFORE_AUTOGRAD, *pipeline.AFTER_AUTOGRAD, *pipeline.CPU)
        if stage.gives in (TRACED, pipeline.GRAPH, PROGRAM) and watch.fired[stage.name]
    ]
    gains = {}
    for name in names:
        try:
            gains[name] = cost.of(planned(model, name).cost())
        except Exception:
            needed.add(name)
    return gains


def _count_kernel(
    step: KernelStep,
    compiled: Compiled,
    counts: Counter[str],
    gains: dict[str, tuple[int, int, int]],
    needed: set[str],
) -> None:
    """Stages that change the kernel, and what it costs more without each of them."""
    watch = Watch()
    with watching(watch):
        *_, kernel = lowered(step, "")
    whole = Cost()
    _add_kernel(whole, kernel, compiled.graph.hints)
    for name in watch.fired:
        counts[name] += 1
        try:
            *_, other = lowered(step, name)
            cost = Cost()
            _add_kernel(cost, other, compiled.graph.hints)
        except Exception:
            needed.add(name)
            continue
        more = whole.of(cost)
        gains[name] = tuple(a + b for a, b in zip(gains.get(name, (0, 0, 0)), more))  # type: ignore[assignment]


def lowered(step: KernelStep, without: str) -> Iterator[Kernel]:
    """What each stage leaves of the kernel, but for one stage."""
    stages = [stage for stage in CPU_LOWERING if stage.gives is KERNEL and stage.name != without]
    lowering = cpu_kernels.lowering_of(step, threads_now())
    yield step.stitched.kernel
    for _, kernel in pipeline.snapshots(stages, step.stitched.kernel, lowering):
        yield kernel


def _state(gm: torch.fx.GraphModule | JointGraph) -> object:
    """What stages that work in place change."""
    graph = gm.traced if isinstance(gm, JointGraph) else gm.graph
    return [
        (str(node.target), str(node.args), str(node.kwargs), _strides(node), sorted(node.meta))
        for node in graph.nodes
    ]


def _strides(node: torch.fx.Node) -> object:
    value = node.meta.get("val", node.meta.get("example_value"))
    return str(value.stride()) if isinstance(value, Tensor) else None


def _has_changed(stage: Stage, before: Any, form: Any) -> bool:
    if stage.gives in IN_PLACE:
        return bool(before != _state(form))
    if stage.gives is PROGRAM:
        return stage.name == "plan" or bool(form.before) or form.otherwise is not None
    return before is not form if stage.gives is pipeline.GRAPH else bool(before != form)


def _add_kernel(cost: Cost, kernel: Kernel, hints: Any) -> None:
    sizes = {**hints, "threads": THREADS}
    read, written = traffic(kernel, sizes)
    cost.bytes += sum(read.values()) + sum(written.values())
    for phase in kernel.phases:
        for nest in phase.nests:
            rows = evaluate(product(axis.extent for axis in nest.rows), sizes)
            cost.operations += rows * _operations(nest.body, sizes)


def _operations(body: Iterable[Stmt], sizes: Any) -> int:
    count = 0
    for statement in body:
        if isinstance(statement, BLOCKS):
            is_sum = isinstance(statement, Contract | AccumulateMatmul)  # of products
            once = 2 * is_sum + _operations(statement.body, sizes)
            count += evaluate(statement.axis.extent, sizes) * once
        elif isinstance(statement, Let | Accumulate | AccumulateInto):
            count += 1
    return count


def _add_call(cost: Cost, step: LibraryStep, hints: Any) -> None:
    call = aten_form(call_of(step.node))
    results = [tensor for tensor in step.results if tensor is not None]
    sizes = [operand.type.bytes for operand in dict.fromkeys(step.node.inputs)]
    cost.bytes += sum(evaluate(size, hints) for size in (*sizes, *(r.bytes for r in results)))
    formula = flop_registry.get(getattr(call.target, "overloadpacket", None))
    if formula is None or not results:
        return
    operands = [_meta(node, hints) for node in step.node.inputs]
    substitute = partial(_substituted, operands=operands)
    try:
        outputs = tuple(_meta(tensor.node, hints) for tensor in results)
        output = outputs if len(call.results) > 1 else outputs[0]
        cost.operations += formula(*map(substitute, call.arguments), out_val=output)
    except Exception:  # a formula that wants more results than are read
        return


def _meta(node: Node, hints: Any) -> Tensor:
    return torch.empty([evaluate(size, hints) for size in node.shape], device="meta")


def _substituted(argument: object, operands: Sequence[Tensor]) -> object:
    if isinstance(argument, Operand):
        return operands[argument.index]
    if isinstance(argument, tuple):
        return [_substituted(part, operands) for part in argument]
    return argument


def rules() -> list[str]:
    """All rules of the graph IR, by their names."""
    modules = ("algebra", "constant_folding", "logic", "view_propagation", "reassociation")
    modules_of_rules = {}
    for module in modules:
        for value in vars(importlib.import_module(f"hemstitch.rewrites.{module}")).values():
            if isinstance(value, engine.Rule):
                modules_of_rules[value.name] = module
    return sorted(modules_of_rules)
