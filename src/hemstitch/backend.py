"""What `torch.compile(..., backend="hemstitch")` finds: AOTAutograd around the compiler."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from hemstitch.compile import Begun, Compiled, begin, finish
from hemstitch.errors import GraphWarning
from hemstitch.frontend.as_traced import AsTraced
from hemstitch.frontend.channels import by_channels
from hemstitch.frontend.decompose import decompositions
from hemstitch.frontend.direct import Part, direct
from hemstitch.frontend.edges import narrow
from hemstitch.frontend.excluded import mark_excluded
from hemstitch.frontend.frozen import frozen_arguments
from hemstitch.frontend.interpolation import interpolate_by_axes
from hemstitch.frontend.loss import EveryNth, losses, without
from hemstitch.frontend.partition import NUMBERS, partition
from hemstitch.frontend.rewrites import apply
from hemstitch.frontend.rows import only_read
from hemstitch.frontend.sharing import expanded_arguments, views_made_anew
from hemstitch.frontend.unused import Backward
from hemstitch.frontend.windows import as_products
from hemstitch.frontend.words import by_words
from hemstitch.options import Options
from hemstitch.runtime.background import Deferred, Job, later
from hemstitch.runtime.verified import Verified

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
    return compile_with(gm, example_inputs, Options.parse(options, mode))


def compile_with(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    options: Options,
    observe: Observer | None = None,
    plan_only: bool = False,
    submit: Callable[[Job], None] = later,
) -> Function:
    """The same, telling `observe` of every graph: ("forward" | "backward" | "inference", it).

    `plan_only`: kernels are not built, and the callable runs what torch traced. `submit`: takes
    what the option `asynchronous` leaves for later.
    """
    parts: dict[str, Part] = {}
    recorder = _recorder(options)
    forward, backward, inference = (
        _GraphCompiler(kind, options, observe, plan_only, parts, recorder, submit)
        for kind in ("forward", "backward", "inference")
    )
    interpolate_by_axes(gm)
    whole: Function = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partial(partition, options=options),
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return whole if plan_only else direct(whole, parts, example_inputs)


@dataclass(frozen=True, slots=True)
class _GraphCompiler:
    """What AOTAutograd calls for one of its graphs. `parts`: takes what came out of it.
    `recorder`: makes CUDA graphs of calls. `submit`: as in `compile_with`."""

    kind: str
    options: Options
    observe: Observer | None
    plan_only: bool
    parts: dict[str, Part]
    recorder: Any
    submit: Callable[[Job], None]

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        if self.kind == "inference":
            apply(gm, self.options.rewrites)
            only_read(gm.graph)
            by_words(gm.graph)
            by_channels(gm.graph, rows=self.options.opens_products)
            as_products(gm.graph)
            narrow(gm.graph)
            mark_excluded(gm.graph)
        unseen = losses(gm.meta.get(NUMBERS, ()))
        if unseen:
            run = self._sparing(gm, inputs, unseen)
        elif self.kind == "backward" and not self.plan_only:
            run = Backward(partial(self._run, inputs=inputs), gm)
        else:
            run = self._run(gm, inputs)
        self.parts[self.kind] = Part(run, gm, tuple(inputs))
        return run

    def _sparing(
        self, gm: torch.fx.GraphModule, inputs: Sequence[object], unseen: Sequence[int]
    ) -> Function:
        """Most calls do not compute these results."""
        short = self._run(without(gm, unseen), inputs)
        every = self.options.loss_every
        if not every:
            return short
        return EveryNth(replace(self, observe=None)._run(gm, inputs), short, every)

    def _run(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        """What cannot be compiled as a whole runs as torch traced it, after one warning."""
        options, captured = self.options, None
        try:
            is_backward = self.kind == "backward"
            is_frozen = options.freeze and self.kind == "inference"
            frozen = frozen_arguments(gm) if is_frozen else ()
            private = self._private_results()
            views = (expanded_arguments if is_backward else views_made_anew)(gm.graph)
            begun = begin(gm, inputs, options, private, is_backward, frozen, views)
            captured = begun.captured
            make = partial(self._finish, begun, gm, inputs)
            if not options.asynchronous:
                return make()
            return Deferred(AsTraced(gm, captured), make, self.submit, options.strict)
        except Exception as error:
            if options.strict:
                raise
            warnings.warn(GraphWarning(error), stacklevel=2)
            return AsTraced(gm, captured)

    def _finish(self, begun: Begun, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        compiled = finish(begun, self.options, plan_only=self.plan_only)
        if self.options.asynchronous and compiled.target == "cuda":
            # Kernels own memory that was written in this thread's stream, not in the program's.
            torch.cuda.current_stream(begun.captured.device).synchronize()
        if self.observe is not None:
            self.observe(self.kind, compiled)
        if compiled.executable is None:
            return AsTraced(gm)
        if self.options.verify:
            return _verified(compiled)
        if self.recorder is not None:
            constants = compiled.captured.constants
            recorded: Function = self.recorder.record(
                self.kind, compiled.executable, gm, inputs, constants
            )
            return recorded
        return compiled.executable

    def _private_results(self) -> int | None:
        """How many results of a forward graph are the user's; the others go to backward."""
        context = TracingContext.try_get()
        if self.kind != "forward" or context is None or context.fw_metadata is None:
            return None
        count = getattr(context.fw_metadata, "num_forward_returns", None)
        return count if isinstance(count, int) else None


def _recorder(options: Options) -> Any:
    # Only this option needs PyTorch's CUDA graphs, and Triton.
    if not options.cuda_graphs:
        return None
    return importlib.import_module("hemstitch.runtime.cuda.graphs").Recorder()


def _verified(compiled: Compiled) -> Verified:
    captured, executable = compiled.captured, compiled.executable
    assert executable is not None
    return Verified(
        *(executable, captured.graph, compiled.plan),
        *(captured.returns, captured.constants, captured.device),
    )
