"""What a library call is written as, computed by the graph interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hemstitch.capture.structured_calls import structured
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall
from hemstitch.ir.graph import Graph, Output
from hemstitch.ir.types import DType, TensorType, contiguous_strides
from hemstitch.ir.verifier import verify
from hemstitch.runtime import interpreter as interpret


def written_out(
    opened: Callable[..., Any],
    target: Any,
    tensors: Sequence[Tensor],
    arguments: tuple[Any, ...],
    results: Sequence[Tensor],
) -> Sequence[Any]:
    """All results of a call, as the interpreter computes what `opened` writes it as. The input's
    channels lie side by side."""
    builder = Builder()
    inputs = [
        builder.input(f"x{n}", n, tuple(tensor.shape), DType.F64, tensor.stride())
        for n, tensor in enumerate(tensors)
    ]
    types = [(TensorType(tuple(r.shape), DType.F64), r.stride()) for r in results]
    strides = tuple(tensor.stride() for tensor in tensors)
    is_tuple = len(results) > 1
    call = LibraryCall(str(target), target, arguments, (), strides, tuple(types), is_tuple)
    described = structured(call, [node.type for node in inputs], None)
    assert described is not None
    found = opened(builder, described[0], [inputs[place] for place in described[1]])
    values = [found.result(number).value for number in range(len(results))]
    outputs = tuple(Output(value, contiguous_strides(value.shape)) for value in values)
    graph = Graph(tuple(inputs), outputs)
    verify(graph)
    return interpret.run(graph, tensors)
