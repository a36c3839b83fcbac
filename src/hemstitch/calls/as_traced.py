"""A graph run as PyTorch traced it, operation by operation: what a program gets while its graph
waits to be compiled, and where it cannot be compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch.fx

from hemstitch.capture.translation import Captured
from hemstitch.ir.dims import Dim, evaluate
from hemstitch.runtime.interpreter import bind_symbols, with_strides
from hemstitch.runtime.returned import Result


class AsTraced:
    """Call with a list of arguments, like an `Executable`. `captured`: with it, results have the
    strides that they were traced with, which a compiled backward and the program rely on and
    PyTorch's operations do not always keep to."""

    def __init__(self, traced: torch.fx.GraphModule, captured: Captured | None = None) -> None:
        self._boxed_call = True
        self._traced = traced
        self._captured = captured

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        inputs = [*arguments]
        arguments.clear()
        results = [*self._traced(*inputs)]
        if self._captured is not None:
            symbols = bind_symbols(self._captured.graph, inputs)
            for place, strides in _strided(self._captured):
                steps = [s if isinstance(s, int) else evaluate(s, symbols) for s in strides]
                results[place] = with_strides(results[place], steps)
        return results


def _strided(captured: Captured) -> Iterator[tuple[int, tuple[Dim, ...]]]:
    """Where among the results, with which strides. None for a tensor that is not strided."""
    for place, returned in enumerate(captured.returns):
        if isinstance(returned, Result):
            output = captured.graph.outputs[returned.index]
            if output.strides:
                yield place, output.strides
