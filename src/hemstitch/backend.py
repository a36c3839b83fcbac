"""The entry point of `torch.compile(..., backend="hemstitch")`: AOTAutograd around the compiler."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from hemstitch.calls.argument_checks import arguments_of_graph, check_arguments, is_guarded
from hemstitch.calls.as_traced import AsTraced
from hemstitch.calls.data_dependent import has_sizes_from_data, in_parts
from hemstitch.calls.direct_calls import Calls, CompiledPart, direct
from hemstitch.calls.effect_tokens import without_tokens
from hemstitch.calls.unused_gradients import Backward, with_zeros
from hemstitch.capture.decompositions import decompositions
from hemstitch.capture.frozen_arguments import frozen_arguments
from hemstitch.capture.result_aliasing import (
    TRACED,
    Results,
    results_of_backward,
    results_of_forward,
)
from hemstitch.capture.scalar_arguments import only_tensors
from hemstitch.capture.seeded_random import draw_at_once
from hemstitch.capture.translation import Captured
from hemstitch.driver.background import Deferred, Job, submit_to_worker
from hemstitch.driver.builds import expect_kernels
from hemstitch.driver.compiler import Compiled, PendingGraph, begin, finish
from hemstitch.driver.verified import Verified
from hemstitch.fallback import (
    Boxed,
    Recoverable,
    attempt,
    by_pytorch,
    copied,
    is_repeatable,
)
from hemstitch.gpu_vendors import VENDORS
from hemstitch.ir.graph import Op
from hemstitch.joint.loss_elimination import EveryNth, losses, without
from hemstitch.joint.partition import NUMBERS, partition
from hemstitch.options import Options
from hemstitch.pipeline import AFTER_AUTOGRAD, BEFORE_AUTOGRAD, JOINT_REWRITES, Tracing, run_stages
from hemstitch.runtime.versions import warn_newer_torch

Function = Callable[..., Any]
Observer = Callable[[str, Compiled], None]


def hemstitch(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Function:
    """Compile one Dynamo graph for inference or training."""
    parsed = attempt(partial(Options.parse, options, mode), Options)
    return compile_with(gm, example_inputs, parsed)


def compile_with(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    options: Options,
    observe: Observer | None = None,
    plan_only: bool = False,
    submit: Callable[[Job], None] = submit_to_worker,
) -> Function:
    """As `hemstitch`. `observe` is called for every graph with its kind ("forward", "backward" or
    "inference") and the compiled graph.

    `plan_only`: kernels are not built, and the callable runs the traced graph. `submit`: takes the
    jobs that the option `asynchronous` defers.
    """
    untouched = gm

    def compiled() -> Function:
        nonlocal untouched
        untouched = copied(gm)  # `gm` is rewritten before it is traced
        return _compiled(gm, untouched, example_inputs, options, observe, plan_only, submit)

    def traced() -> Function:
        return by_pytorch(untouched, example_inputs)

    return attempt(compiled, traced, options.strict, gm)


def _compiled(
    gm: torch.fx.GraphModule,
    untouched: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    options: Options,
    observe: Observer | None,
    plan_only: bool,
    submit: Callable[[Job], None],
) -> Function:
    warn_newer_torch()
    if not plan_only:
        expect_kernels(example_inputs, options)
    run_stages(BEFORE_AUTOGRAD, gm, Tracing(options, is_joint=False), options.check)
    parts: dict[str, CompiledPart] = {}
    computing: dict[str, bool] = {}
    recorder, guarded = _recorder(options), is_guarded()
    forward, backward, inference = (
        _GraphCompiler(
            *(kind, options, observe, plan_only, parts, computing, recorder, submit, guarded)
        )
        for kind in ("forward", "backward", "inference")
    )
    tracing = Tracing(options, is_joint=True)
    traced_rewrites, joint_rewrites = (
        partial(run_stages, stages, told=tracing, check=options.check)
        for stages in (AFTER_AUTOGRAD, JOINT_REWRITES)
    )
    with torch._functorch.config.patch(unlift_effect_tokens=True), only_tensors(gm):
        whole: Function = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=partial(
                partition,
                traced_rewrites=traced_rewrites,
                rewritten=joint_rewrites,
                options=options,
                leaves=[*map(_is_leaf, example_inputs)],
            ),
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )(gm, example_inputs)
    if plan_only:
        return whole
    calls = Calls(untouched.forward, computing) if _is_as_captured(gm, untouched) else None
    shortest = partial(direct, whole, parts, example_inputs, options.strict, calls)
    return attempt(shortest, lambda: whole, options.strict)


@dataclass(frozen=True, slots=True)
class _GraphCompiler:
    """The compiler that AOTAutograd calls for one of its graphs. `parts`: receives the compiled
    graph; `computing`: receives whether one of its kernels computes anything. `recorder`: records
    CUDA graphs. `submit`: as in `compile_with`. `is_guarded`: Dynamo's guards check all arguments.
    `is_part`: the graphs are parts of one of AOTAutograd's, whose metadata does not describe them.
    """

    kind: str
    options: Options
    observe: Observer | None
    plan_only: bool
    parts: dict[str, CompiledPart]
    computing: dict[str, bool]
    recorder: Any
    submit: Callable[[Job], None]
    is_guarded: bool
    is_part: bool = False

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        """A graph that cannot be compiled runs as traced."""
        compiled: Callable[[], Function] = partial(self._compiled, gm, inputs)
        traced: Callable[[], Function] = partial(AsTraced, gm)
        return attempt(compiled, traced, self.options.strict, gm)

    def _compiled(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        without_tokens(gm)
        draw_at_once(gm)
        losses_to_skip = losses(gm.meta.get(NUMBERS, ()))
        run: Boxed
        if losses_to_skip:
            run = self._with_loss_elimination(gm, inputs, losses_to_skip)
        elif self.kind == "backward" and not self.plan_only:
            backward = Backward(partial(self._run, inputs=inputs), gm)
            traced = with_zeros(AsTraced(gm), gm)
            run = Recoverable(backward, traced, holds=False, strict=self.options.strict)
        else:
            run = self._run(gm, inputs)
        self.parts[self.kind] = CompiledPart(
            run, gm, tuple(inputs), is_repeatable(gm), self.is_guarded
        )
        return run

    def _with_loss_elimination(
        self, gm: torch.fx.GraphModule, inputs: Sequence[object], losses_to_skip: Sequence[int]
    ) -> Function:
        """Most calls skip these losses."""
        self.computing[self.kind] = True
        short = self._run(without(gm, losses_to_skip), inputs)
        every = self.options.loss_every
        if not every:
            return short
        return EveryNth(replace(self, observe=None)._run(gm, inputs), short, every)

    def _run(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        captured: list[Captured] = []
        compiled: Callable[[], Function]
        if has_sizes_from_data(gm):
            compiled = partial(self._in_parts, gm)
        else:
            compiled = partial(self._compile_or_defer, gm, inputs, captured)

        def traced() -> Function:
            return AsTraced(gm, *captured)

        return attempt(compiled, traced, self.options.strict, gm)

    def _in_parts(self, gm: torch.fx.GraphModule) -> Function:
        part = replace(self, is_part=True)
        return AsTraced(in_parts(gm, part._run))

    def _compile_or_defer(
        self, gm: torch.fx.GraphModule, inputs: Sequence[object], captured: list[Captured]
    ) -> Function:
        """`captured`: receives the captured graph, even if a later stage fails."""
        options, is_backward = self.options, self.kind == "backward"
        is_frozen = options.freeze and self.kind == "inference" and not self.is_part
        graph = self._rewritten(gm) if self.kind == "inference" else gm
        frozen = frozen_arguments(graph) if is_frozen else ()
        private = self._private_results()
        results = TRACED if self.is_part else self._results(graph.graph)
        pending = begin(graph, inputs, options, private, is_backward, frozen, results)
        captured.append(pending.captured)
        traced = AsTraced(gm, pending.captured)
        make = partial(self._finish, pending, graph, inputs, traced)
        return (
            Deferred(traced, make, self.submit, options.strict) if options.asynchronous else make()
        )

    def _results(self, graph: torch.fx.Graph) -> Results:
        return (results_of_backward if self.kind == "backward" else results_of_forward)(graph)

    def _rewritten(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """The rewrites that `partition` applies to the joint graph."""
        new = copied(gm)
        tracing = Tracing(self.options, is_joint=False)
        run_stages(AFTER_AUTOGRAD, new, tracing, self.options.check)
        return new

    def _finish(
        self,
        pending: PendingGraph,
        gm: torch.fx.GraphModule,
        inputs: Sequence[object],
        traced: AsTraced,
    ) -> Function:
        compiled = finish(pending, self.options, plan_only=self.plan_only)
        if self.options.asynchronous and compiled.target in VENDORS:
            # Kernels own memory that was written on this thread's stream, not on the program's.
            device = pending.captured.device
            torch.get_device_module(device).current_stream(device).synchronize()
        if self.observe is not None:
            self.observe(self.kind, compiled)
        if compiled.executable is None:
            return traced
        self.computing[self.kind] = self.computing.get(self.kind, False) or _computes(compiled)
        run = self._callable(compiled, gm, inputs)
        if not (self.kind == "backward" or self.is_guarded):
            run = _checked(run, arguments_of_graph(gm))
        holds = self.kind != "backward" and is_repeatable(gm)
        return Recoverable(run, traced, holds, self.options.strict)

    def _callable(
        self, compiled: Compiled, gm: torch.fx.GraphModule, inputs: Sequence[object]
    ) -> Function:
        executable = compiled.executable
        assert executable is not None
        if self.options.verify:
            return _verified(compiled)
        if self.recorder is None:
            return executable.shortest()
        constants = compiled.captured.constants
        recorded: Function = self.recorder.record(self.kind, executable, gm, inputs, constants)
        return recorded

    def _private_results(self) -> int | None:
        """The number of a forward graph's results that the user sees; the others are saved for
        backward."""
        context = TracingContext.try_get()
        is_whole = self.kind == "forward" and not self.is_part
        if not is_whole or context is None or context.fw_metadata is None:
            return None
        count = getattr(context.fw_metadata, "num_forward_returns", None)
        return count if isinstance(count, int) else None


def _is_leaf(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) and argument.requires_grad and argument.is_leaf


def _is_as_captured(gm: torch.fx.GraphModule, captured: torch.fx.GraphModule) -> bool:
    """Whether no operation that Dynamo captured was replaced. False for a graph with subgraphs."""
    nodes = [*gm.graph.nodes]
    is_flat = all(node.op != "get_attr" for node in nodes)
    return is_flat and [node.target for node in nodes] == [n.target for n in captured.graph.nodes]


def _computes(compiled: Compiled) -> bool:
    """Whether its kernels compute more than constants."""
    groups = [group for step in compiled.plan.kernels for group in step.groups]
    values = [write.value for group in groups for write in group.writes]
    return (
        bool(compiled.program.before)
        or any(group.members for group in groups)
        or not all(value.op is Op.CONSTANT for value in values)
    )


def _checked(run: Boxed, expected: Sequence[object]) -> Boxed:
    def checked(arguments: list[Any]) -> Sequence[Any]:
        check_arguments(expected, arguments)
        return run(arguments)

    return checked


def _recorder(options: Options) -> Any:
    # Imported here, since PyTorch's CUDA graphs need Triton.
    if not options.cuda_graphs:
        return None
    return importlib.import_module("hemstitch.runtime.gpu.cuda_graphs").Recorder()


def _verified(compiled: Compiled) -> Verified:
    captured, executable = compiled.captured, compiled.executable
    assert executable is not None
    return Verified(
        *(executable, captured.graph, compiled.plan),
        *(captured.returns, captured.constants, captured.device),
    )
