"""What Inductor makes of a program: its kernels, its library calls, the bytes that the kernels move
by its own count, and those of the calls. `generated` takes fake tensors of a GPU, after
`stand_in.pretend()`, and nothing is run; `counted` listens to what a program is compiled to that
does run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import MultiOutput, MultiOutputLayout, NoneLayout
from torch._inductor.scheduler import (
    ExternKernelSchedulerNode,
    FusedSchedulerNode,
    SchedulerNode,
)
from torch._inductor.virtualized import V

_LAUNCH = re.compile(r"^\s*(?:(\w+)\.run|(cpp_\w+))\(", re.M)  # Triton's, C++
_CALL = re.compile(r"extern_kernels\.(\w+)\(|\b((?:torch\.ops\.\w+|aten)\.\w+(?:\.\w+)?)\(")
_NO_CALLS = ("torch.ops.inductor",)  # views, and gradients that are added outside the graph


@dataclass(slots=True)
class Generated:
    """Of all graphs of a program. The bytes count each tensor once a kernel, as if loops that read
    one again found it in a cache. `library_bytes`: of the operands and results of the calls; of a
    part of a tensor only the part, where Inductor's own count has the whole."""

    kernels: list[str] = field(default_factory=list)
    library_calls: list[str] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0
    library_bytes: int = 0
    sources: list[str] = field(default_factory=list)


def generated(function: Callable[..., Any], arguments: Sequence[Any]) -> Generated:
    """For the backward pass too, where gradients are asked for."""
    code = Generated()

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        compile_fx(gm, inputs)
        return gm.forward

    torch._dynamo.reset()
    with _listening(code, runs=False):
        torch.compile(function, backend=backend)(*arguments)
    torch._dynamo.reset()
    return code


@contextmanager
def counted() -> Iterator[Generated]:
    """Of all graphs that are compiled inside."""
    code = Generated()
    with (
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        _listening(code, runs=True),
    ):
        yield code


def _never(arguments: Sequence[Any]) -> None:
    raise RuntimeError("nothing of what Inductor generates here is run")


@contextmanager
def _listening(generated_code: Generated, *, runs: bool) -> Iterator[None]:
    """Where Inductor would load the module that it has written, take a look at it before that, or
    instead."""
    lowering: Any = GraphLowering
    load = lowering._compile_to_module_lines

    def look(graph: Any, code: Any) -> Any:
        _add(generated_code, graph, code.value)
        if runs:
            return load(graph, code)
        return SimpleNamespace(call=_never, __file__=__file__, key="", runner=None)

    lowering._compile_to_module_lines = look
    try:
        yield
    finally:
        lowering._compile_to_module_lines = load


def _add(generated_code: Generated, graph: Any, source: str) -> None:
    body = source[source.index("def call(") :].partition("\ndef benchmark_compiled_module")[0]
    generated_code.kernels += [triton or cpp for triton, cpp in _LAUNCH.findall(body)]
    calls = [kernel or operator for kernel, operator in _CALL.findall(body)]
    generated_code.library_calls += [call for call in calls if not call.startswith(_NO_CALLS)]
    generated_code.sources.append(source)
    with V.set_graph_handler(graph):
        for node in graph.scheduler.nodes:
            if isinstance(node, (SchedulerNode, FusedSchedulerNode)):
                generated_code.bytes_read += int(node.get_read_buffer_sizes())
                generated_code.bytes_written += int(node.get_write_buffer_sizes())
            elif isinstance(node, ExternKernelSchedulerNode):
                generated_code.library_bytes += sum(map(_bytes, _tensors(node.node)))


def _tensors(call: Any) -> Iterator[Any]:
    """What it reads and what it gives. Of several results each is a node of its own."""
    if isinstance(call, MultiOutput):
        yield call
        return
    for operand in call.inputs:
        yield from operand if isinstance(operand, (list, tuple)) else (operand,)
    if not isinstance(call.layout, (MultiOutputLayout, NoneLayout)):
        yield call


def _bytes(tensor: Any) -> int:
    """Elements that a broadcast repeats lie in memory once. Results that nobody takes are none."""
    size = tensor.maybe_get_size()
    if size is None:
        return 0
    hint = V.graph.sizevars.optimization_hint
    pairs = [(hint(extent), hint(step)) for extent, step in zip(size, tensor.get_stride())]
    return prod(extent for extent, step in pairs if step) * int(tensor.get_dtype().itemsize)
