"""The entry that `torch.compile(..., backend="hemstitch")` finds: AOTAutograd around the compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd

from hemstitch.compile import Compiled, compile_graph
from hemstitch.errors import HemstitchError
from hemstitch.frontend.decompose import decompositions
from hemstitch.frontend.partition import partition
from hemstitch.options import Options

Callable_ = Callable[..., Any]


def hemstitch(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable_:
    """Compile one Dynamo graph for inference or training."""
    return compile_with(gm, example_inputs, Options.parse(options, mode), _ignore)


def compile_with(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    options: Options,
    observe: Callable[[str, Compiled], None],
) -> Callable_:
    """The same, telling `observe` of every graph: ("forward" | "backward" | "inference", it)."""

    def compiler(kind: str) -> Callable_:
        def compile_one(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable_:
            return _compile_or_fall_back(graph, inputs, options, lambda c: observe(kind, c))

        return compile_one

    compiled: Callable_ = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _compile_or_fall_back(
    gm: torch.fx.GraphModule,
    inputs: Sequence[object],
    options: Options,
    observe: Callable[[Compiled], None],
) -> Callable_:
    """What cannot be compiled as a whole runs as torch traced it, after one warning."""
    try:
        compiled = compile_graph(gm, inputs, options)
    except Exception as error:
        if options.strict:
            raise
        warnings.warn(GraphWarning(error), stacklevel=2)
        return _boxed(gm)
    observe(compiled)
    return compiled.executable


class GraphWarning(UserWarning):
    """A graph could not be compiled; it runs through the library instead."""

    def __init__(self, error: Exception) -> None:
        what = str(error) if isinstance(error, HemstitchError) else repr(error)
        super().__init__(f"a graph runs uncompiled: {what}")


def _boxed(gm: torch.fx.GraphModule) -> Callable_:
    def run(arguments: list[object]) -> Any:
        given = list(arguments)
        arguments.clear()
        return gm(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _ignore(kind: str, compiled: Compiled) -> None:
    """Nobody asked."""
