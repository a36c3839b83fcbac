"""Runs one OpInfo sample through a compiler backend and through eager PyTorch, and compares.

The backend is called as Dynamo would call it, with a graph of one node, but without Dynamo: that
is several times faster. Samples that Dynamo would split (results of unknown size, sparse tensors)
do go through `torch.compile`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from hemstitch.explain import explain

BACKEND = os.environ.get("HEMSTITCH_TEST_BACKEND", "hemstitch")
# Relative and absolute. Gradients pass through more roundings than results.
TOLERANCE = {"forward": (1e-4, 1e-5), "backward": (1e-3, 1e-4)}
BATCH = 16  # samples in one compile
SEED = 42  # the one that OpInfo itself sets before it calls a random operation

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

    return Call(function, tuple(leaves[place] for place in places))


def together(calls: Sequence[Call]) -> Call:
    """Several calls as one, so that what a compile costs whatever its size is paid once."""

    def function(*tensors: Tensor) -> list[Any]:
        rest = iter(tensors)
        return [call.function(*islice(rest, len(call.tensors))) for call in calls]

    return Call(function, tuple(tensor for call in calls for tensor in call.tensors))


def samples(op: OpInfo, dtype: torch.dtype, backward: bool) -> Iterator[Call]:
    torch.manual_seed(SEED)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=backward):
        yield call_of(op, sample)


def compiled(call: Call, tensors: Sequence[Tensor], backend: str) -> Function:
    """The call as the backend compiles it; its results come as a flat sequence."""
    if all(x.layout is torch.strided for x in tensors):
        try:
            return _without_dynamo(call, tensors, backend)
        except (DataDependentOutputException, DynamicOutputShapeException):
            pass
    torch._dynamo.reset()
    return torch.compile(call.function, backend=backend)


def _without_dynamo(call: Call, tensors: Sequence[Tensor], backend: str) -> Function:
    graph = torch.fx.Graph()
    arguments = [graph.placeholder(f"x{index}") for index in range(len(tensors))]

    def results(*values: Tensor) -> tuple[Any, ...]:
        return tuple(tree_leaves(call.function(*values)))

    results.__name__ = "sample"
    node = graph.call_function(results, tuple(arguments))
    with torch.no_grad():
        count = len(results(*call.fresh()))
    graph.output(tuple(graph.call_function(_item, (node, index)) for index in range(count)))
    compiler = torch._dynamo.lookup_backend(backend)
    return compiler(torch.fx.GraphModule(torch.nn.Module(), graph), list(tensors))


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


def _same_kind(found: list[Any], expected: list[Any]) -> None:
    """For results that are random: shape and type only."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        if isinstance(theirs, Tensor):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)


def _inputs(call: Call, backward: bool) -> list[Tensor]:
    wanted = [x.requires_grad and backward for x in call.tensors]
    return [x.requires_grad_(flag) for x, flag in zip(call.fresh(), wanted)]


def is_run_by_eager(call: Call, backward: bool) -> bool:
    """Some samples are there to show what PyTorch refuses."""
    try:
        (_backward if backward else _forward)(call.function, _inputs(call, backward))
    except Exception:
        return False
    return True


def check(call: Call, backward: bool, random: bool = False, backend: str = BACKEND) -> None:
    """Raises where the backend's results differ."""
    run = _backward if backward else _forward
    expected = run(call.function, _inputs(call, backward))
    tensors = _inputs(call, backward)
    with torch.set_grad_enabled(backward):
        function = compiled(call, tensors, backend)
    found = run(function, tensors)
    relative, absolute = TOLERANCE["backward" if backward else "forward"]
    if random:
        _same_kind(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=relative, atol=absolute, equal_nan=True)


def differences(
    calls: Sequence[Call], backward: bool, random: bool, backend: str = BACKEND
) -> list[str]:
    """What is wrong with each wrong sample. Batches of them go first, single ones only where
    the batch fails: random operations, for one, do not draw the same numbers in a batch."""
    wrong = []
    for start in range(0, len(calls), BATCH):
        batch = calls[start : start + BATCH]
        if len(batch) > 1 and _problem(together(batch), backward, random, backend) is None:
            continue
        for number, call in enumerate(batch, start):
            problem = _problem(call, backward, random, backend)
            if problem is not None:
                wrong.append(f"sample {number}: {problem}")
    return wrong


def _problem(call: Call, backward: bool, random: bool, backend: str) -> str | None:
    try:
        check(call, backward, random, backend)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def is_generated(call: Call) -> bool:
    """Whether Hemstitch computes all of the call in kernels of its own."""
    report = explain(call.function, *call.fresh())
    return report.kernel_count > 0 and not report.library_calls
