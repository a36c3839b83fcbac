"""Runs one OpInfo sample through a compiler backend and through eager PyTorch, and compares.

The backend is called as Dynamo would call it, with a graph of one node, but without Dynamo: that
is several times faster, and Dynamo itself is not what is tested here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

BACKEND = os.environ.get("HEMSTITCH_TEST_BACKEND", "hemstitch")
# Relative and absolute. Gradients pass through more roundings than results.
TOLERANCE = {"forward": (1e-4, 1e-5), "backward": (1e-3, 1e-4)}
SEED = 0

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One sample as a function of its tensors alone."""

    function: Function
    tensors: tuple[Tensor, ...]

    def fresh(self) -> list[Tensor]:
        """Copies with the same strides, since an operation may change its argument."""
        return [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.detach())
            if x.layout is torch.strided and not _overlaps(x)
            else x.detach().clone()
            for x in self.tensors
        ]


def call_of(op: OpInfo, sample: SampleInput) -> Call:
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def function(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        value, arguments, keywords = tree_unflatten(filled, structure)
        return op.op(value, *arguments, **keywords)

    function.__name__ = "sample"
    return Call(function, tuple(leaves[place] for place in places))


def samples(op: OpInfo, dtype: torch.dtype, backward: bool, most: int | None) -> Iterator[Call]:
    torch.manual_seed(SEED)
    found = op.sample_inputs("cpu", dtype, requires_grad=backward)
    for count, sample in enumerate(found):
        if most is not None and count >= most:
            return
        yield call_of(op, sample)


def compiled(call: Call, tensors: Sequence[Tensor], backend: Function) -> Function:
    """The function as the backend compiles it, with the results flattened to a tuple."""
    graph = torch.fx.Graph()
    arguments = [graph.placeholder(f"x{index}") for index in range(len(tensors))]

    def results(*values: Tensor) -> tuple[Any, ...]:
        return tuple(tree_leaves(call.function(*values)))

    results.__name__ = "sample"
    node = graph.call_function(results, tuple(arguments))
    with torch.no_grad():
        count = len(results(*call.fresh()))
    graph.output(tuple(graph.call_function(_item, (node, index)) for index in range(count)))
    return backend(torch.fx.GraphModule(torch.nn.Module(), graph), list(tensors))


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _overlaps(x: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape))


def _forward(function: Function, tensors: Sequence[Tensor]) -> list[Any]:
    torch.manual_seed(SEED)
    with torch.no_grad():
        return list(tree_leaves(function(*tensors)))


def _backward(function: Function, tensors: Sequence[Tensor]) -> list[Any]:
    """The results and the gradients of all inputs that have one."""
    torch.manual_seed(SEED)
    results = [x for x in tree_leaves(function(*tensors)) if isinstance(x, Tensor)]
    trained = [x for x in results if x.requires_grad]
    inputs = [x for x in tensors if x.requires_grad]
    if not trained or not inputs:
        return [x.detach() for x in results]
    torch.manual_seed(SEED + 1)
    directions = [torch.randn_like(x) for x in trained]
    gradients = torch.autograd.grad(trained, inputs, directions, allow_unused=True)
    return [*(x.detach() for x in results), *gradients]


def check(call: Call, backward: bool, backend: Function) -> bool:
    """Raises where the backend's results differ. False where eager PyTorch refuses the sample."""
    run = _backward if backward else _forward
    differentiable = [x.requires_grad and backward for x in call.tensors]

    def inputs() -> list[Tensor]:
        return [x.requires_grad_(wanted) for x, wanted in zip(call.fresh(), differentiable)]

    try:
        expected = run(call.function, inputs())
    except Exception:  # the sample is not one that PyTorch runs
        return False
    tensors = inputs()
    with torch.set_grad_enabled(backward):
        function = compiled(call, tensors, backend)
    relative, absolute = TOLERANCE["backward" if backward else "forward"]
    torch.testing.assert_close(
        run(function, tensors), expected, rtol=relative, atol=absolute, equal_nan=True
    )
    return True
