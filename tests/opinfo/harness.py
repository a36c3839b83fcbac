"""Runs OpInfo samples through the compiled backend and through eager PyTorch, and compares.

The backend is called as Dynamo would call it, with a graph of one node, but without Dynamo: that
is several times faster. Samples that Dynamo would split (results of unknown size, sparse tensors)
do go through `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from hemstitch.backend import compile_with
from hemstitch.compile import Compiled
from hemstitch.fusion.plan import KernelStep, LibraryStep
from hemstitch.options import Options

# Relative and absolute. Gradients pass through more roundings than results.
TOLERANCE = {"forward": (1e-4, 1e-5), "backward": (1e-3, 1e-4)}
BATCH = 16  # samples in one compile
SEED = 42  # the one that OpInfo itself sets before it calls a random operation
STRICT = Options(strict=True)  # what falls back to eager would always agree with it
DRAW_SEEDS = "hemstitch.draw_seeds"  # torch's generator gives the seeds of random kernels

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One sample as a function of its tensors alone."""

    function: Function
    tensors: tuple[Tensor, ...]

    def inputs(self, backward: bool) -> list[Tensor]:
        """Copies with the same strides, since an operation may change its argument."""
        copies = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.detach())
            if _is_strided(x) and not _overlaps(x)
            else x.detach().clone()
            for x in self.tensors
        ]
        return [
            copy.requires_grad_(x.requires_grad and backward)
            for copy, x in zip(copies, self.tensors)
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave, and what its tensors held afterwards. Numbers stand among the results."""

    results: list[Any]
    gradients: list[Tensor | None]
    arguments: list[Tensor]

    @staticmethod
    def joined(outcomes: Sequence[Outcome]) -> Outcome:
        """That of all the calls made as one."""
        return Outcome(
            [x for each in outcomes for x in each.results],
            [x for each in outcomes for x in each.gradients],
            [x for each in outcomes for x in each.arguments],
        )


@dataclass(slots=True)
class Verdict:
    """On all samples of one operation. `library`: what ran as calls of the library."""

    samples: int = 0
    wrong: list[str] = field(default_factory=list)
    kernels: int = 0
    library: set[str] = field(default_factory=set)

    @property
    def is_generated(self) -> bool:
        return self.kernels > 0 and not self.library and not self.wrong

    def observe(self, kind: str, compiled: Compiled) -> None:
        for step in compiled.plan.steps:
            if isinstance(step, LibraryStep):
                self.library |= {str(step.node.attr)} - {DRAW_SEEDS}
            elif isinstance(step, KernelStep):
                self.kernels += 1
            else:
                self.library.add(f"unstitched: {step.why}")


def call_of(op: OpInfo, sample: Any) -> Call:
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


def judge(calls: Sequence[Call], backward: bool, random: bool) -> Verdict:
    """Batches go first, single samples only where the batch fails: operations that draw random
    numbers from torch, for one, do not draw the same ones in a batch."""
    verdict = Verdict()
    known = [(call, eager(call, backward)) for call in calls]
    pairs = [(call, expected) for call, expected in known if expected is not None]
    verdict.samples = len(pairs)
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        whole = together([call for call, _ in batch])
        expected = Outcome.joined([expected for _, expected in batch])
        if len(batch) > 1 and not random and _problem(whole, expected, backward, verdict) is None:
            continue
        for number, (call, expected) in enumerate(batch, start):
            problem = _problem(call, expected, backward, verdict, random)
            if problem is not None:
                verdict.wrong.append(f"sample {number}: {problem}")
    return verdict


def eager(call: Call, backward: bool) -> Outcome | None:
    """None for the samples that are there to show what PyTorch refuses."""
    try:
        return _run(call.function, call.inputs(backward), backward)
    except Exception:
        return None


def _problem(
    call: Call, expected: Outcome, backward: bool, verdict: Verdict, random: bool = False
) -> str | None:
    try:
        tensors = call.inputs(backward)
        with torch.set_grad_enabled(backward):
            function = _compiled(call, tensors, expected, verdict)
        found = _run(function, tensors, backward)
        (_compare_kinds if random else _compare)(found, expected, backward)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _compiled(
    call: Call, tensors: Sequence[Tensor], expected: Outcome, verdict: Verdict
) -> Function:
    """The call as the backend compiles it; its results come as a flat sequence."""

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        return compile_with(gm, inputs, STRICT, verdict.observe)

    if all(map(_is_strided, [*tensors, *expected.results])):
        try:
            return backend(_graph_of(call, len(expected.results)), tensors)
        except (DataDependentOutputException, DynamicOutputShapeException):
            pass
    torch._dynamo.reset()
    return torch.compile(call.function, backend=backend)


def _is_strided(x: Any) -> bool:
    return not isinstance(x, Tensor) or x.layout is torch.strided


def _graph_of(call: Call, count: int) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    arguments = [graph.placeholder(f"x{index}") for index in range(len(call.tensors))]

    def results(*values: Tensor) -> tuple[Any, ...]:
        return tuple(tree_leaves(call.function(*values)))

    results.__name__ = "sample"
    node = graph.call_function(results, tuple(arguments))
    graph.output(tuple(graph.call_function(_item, (node, index)) for index in range(count)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _overlaps(x: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape))


def _run(function: Function, tensors: Sequence[Tensor], backward: bool) -> Outcome:
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(backward):
        results = list(tree_leaves(function(*tensors)))
    gradients = _gradients(results, tensors) if backward else []
    detached = [x.detach() if isinstance(x, Tensor) else x for x in results]
    return Outcome(detached, gradients, [x.detach() for x in tensors])


def _gradients(results: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Of all inputs that want one, None where no result depends on it."""
    trained = [x for x in results if isinstance(x, Tensor) and x.requires_grad]
    inputs = [x for x in tensors if x.requires_grad]
    if not trained:
        return [None] * len(inputs)
    directions = [_direction(x) for x in trained]
    return list(torch.autograd.grad(trained, inputs, directions, allow_unused=True))


def _direction(x: Tensor) -> Tensor:
    """The same in a batch as alone."""
    if not _is_strided(x):
        return x.detach().clone()
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(x.shape, dtype=x.dtype, generator=generator)


def _compare(found: Outcome, expected: Outcome, backward: bool) -> None:
    relative, absolute = TOLERANCE["backward" if backward else "forward"]
    for part in ("results", "gradients", "arguments"):
        torch.testing.assert_close(
            getattr(found, part),
            getattr(expected, part),
            rtol=relative,
            atol=absolute,
            equal_nan=True,
            msg=lambda text, part=part: f"{part}: {text}",
        )


def _compare_kinds(found: Outcome, expected: Outcome, backward: bool) -> None:
    """For results that are random: shape and type only."""
    for mine, theirs in ((found.results, expected.results), (found.gradients, expected.gradients)):
        assert len(mine) == len(theirs)
        for x, y in zip(mine, theirs):
            if isinstance(y, Tensor):
                assert (x.shape, x.dtype) == (y.shape, y.dtype)
