"""A test-only backend: AOTAutograd, capture, then the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from hemstitch.capture.decompositions import decompositions
from hemstitch.capture.result_aliasing import results_of_backward, results_of_forward
from hemstitch.capture.translation import Captured, capture
from hemstitch.ir import dims
from hemstitch.ir.graph import Graph, Op, call_of, toposort
from hemstitch.ir.ops import is_call
from hemstitch.ir.verifier import verify
from hemstitch.joint.partition import partition
from hemstitch.options import Options
from hemstitch.pipeline import AFTER_AUTOGRAD, Tracing, run_stages
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.runtime.interpreter import bind_symbols, run, with_strides
from hemstitch.runtime.returned import (
    Argument,
    Fixed,
    Number,
    Result,
    Returned,
    ReturnedNumber,
    ReturnedView,
)
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

REWRITTEN = partial(run_stages, AFTER_AUTOGRAD, told=Tracing(Options(), is_joint=True))


class InterpretBackend:
    """`backend=` for torch.compile; `captured` collects every graph it was given."""

    def __init__(self, precise: bool = False) -> None:
        self.precise = precise
        self.captured: list[Captured] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return aot_autograd(
            fw_compiler=self.compile,
            bw_compiler=partial(self.compile, is_backward=True),
            inference_compiler=self.compile,
            decompositions=decompositions(),
            partition_fn=partial(partition, rewritten=REWRITTEN),
            keep_inference_input_mutations=True,
        )(gm, example_inputs)

    def compile(
        self, gm: torch.fx.GraphModule, example_inputs: Any, is_backward: bool = False
    ) -> Callable[[list[Any]], Any]:
        results = (results_of_backward if is_backward else results_of_forward)(gm.graph)
        captured = capture(gm, example_inputs, results=results)
        verify(captured.graph)
        self.captured.append(captured)

        def call(arguments: list[Any]) -> tuple[Any, ...]:
            result = execute(captured, arguments, self.precise)
            arguments.clear()
            return result

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


def library_names(captured: Captured) -> list[str]:
    nodes = toposort(captured.graph.roots)
    return [aten_form(call_of(node)).name for node in nodes if is_call(node.op)]


def results(program: Callable[..., torch.Tensor], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Of a program, and the gradients of those arguments that have one."""
    copies = [each.detach().requires_grad_(each.requires_grad) for each in arguments]
    result = program(*copies)
    result.square().sum().backward()
    return [result.detach(), *(each.grad for each in copies if each.grad is not None)]


def convolutions(
    program: Callable[..., Any], arguments: Sequence[Any], *, backward: bool = True
) -> int:
    """That the library does."""
    plans = plans_of(program, arguments, generic_cpu(threads=2, lanes=16), backward=backward)
    return sum(convolutions_in(graph) for graph, _ in plans)


def convolutions_in(graph: Graph) -> int:
    nodes = toposort(graph.roots)
    return sum(node.op in (Op.CONVOLUTION, Op.CONVOLUTION_BACKWARD) for node in nodes)


def execute(captured: Captured, arguments: list[Any], precise: bool = False) -> tuple[Any, ...]:
    graph = captured.graph
    arguments = [*arguments, *captured.constants]
    symbols = bind_symbols(graph, arguments)
    values = run(graph, arguments, precise=precise)
    results = []
    for value, output in zip(values, graph.outputs):
        assert len(value.shape) == len(output.strides)
        strides = [dims.evaluate(stride, symbols) for stride in output.strides]
        results.append(with_strides(value.clone(), strides))
    for result, output in zip(results, graph.outputs):
        if output.mutates is not None:
            arguments[output.mutates.attr.position].copy_(result)

    return tuple(_returned(each, arguments, results, symbols) for each in captured.returns)


def _returned(
    each: Returned, arguments: list[Any], results: list[torch.Tensor], symbols: dict[str, int]
) -> Any:
    match each:
        case Result(index):
            return results[index]
        case ReturnedView(whole, shape, strides, offset):
            base = _returned(whole, arguments, results, symbols)
            sizes, steps = ([dims.evaluate(d, symbols) for d in part] for part in (shape, strides))
            start = base.storage_offset() + dims.evaluate(offset, symbols)
            return base.as_strided(sizes, steps, start)
        case Argument(position):
            return arguments[position]
        case ReturnedNumber(index):
            return results[index].item()
        case Number(value):
            return dims.evaluate(value, symbols)
        case Fixed(value):
            return value
