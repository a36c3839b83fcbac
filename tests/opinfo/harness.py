"""Runs OpInfo samples through the compiled backend and through eager PyTorch, and compares.

The backend is called as Dynamo would call it, with a graph of one node, but without Dynamo: that
is several times faster. Samples that Dynamo would split (results of unknown size, sparse tensors)
do go through `torch.compile`, one by one; what it leaves to eager is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep, LibraryStep

# Relative and absolute. Gradients pass through more roundings than results.
TOLERANCE = {"forward": (1e-4, 1e-5), "backward": (1e-3, 1e-4)}
BATCH = 16  # samples in one compile; with 6 the whole takes 10 % longer, with 40 it takes 5 %
SEED = 42  # the one that OpInfo itself sets before it calls a random operation
STRICT = Options(cache=False, strict=True)  # what falls back to eager would always agree with it
DRAW_SEEDS = "hemstitch.draw_seeds"  # torch's generator gives the seeds of random kernels

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One sample: an operation, and what its arguments are for given tensors."""

    operation: Function
    filled: Callable[[Sequence[Tensor]], tuple[Sequence[Any], Mapping[str, Any]]]
    tensors: tuple[Tensor, ...]

    def function(self, *tensors: Tensor) -> Any:
        arguments, keywords = self.filled(tensors)
        return self.operation(*arguments, **keywords)

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


@dataclass(slots=True)
class Verdict:
    """On all samples of one operation. `library`: what ran as calls of the library. `left`: samples
    of which Dynamo gave the backend nothing."""

    samples: int = 0
    wrong: list[str] = field(default_factory=list)
    left: int = 0
    graphs: int = 0
    kernels: int = 0
    library: set[str] = field(default_factory=set)

    @property
    def is_generated(self) -> bool:
        return self.kernels > 0 and not self.library and not self.wrong

    def observe(self, kind: str, compiled: Compiled) -> None:
        self.graphs += 1
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

    def filled(tensors: Sequence[Tensor]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        new = list(leaves)
        for place, tensor in zip(places, tensors):
            new[place] = tensor
        value, arguments, keywords = tree_unflatten(new, structure)
        return (value, *arguments), keywords

    return Call(op.op, filled, tuple(leaves[place] for place in places))


def together(calls: Sequence[Call]) -> Call:
    """Several calls as one, so that what a compile costs whatever its size is paid once."""

    def operation(*tensors: Tensor) -> list[Any]:
        rest = iter(tensors)
        return [call.function(*islice(rest, len(call.tensors))) for call in calls]

    tensors = tuple(tensor for call in calls for tensor in call.tensors)
    return Call(operation, lambda tensors: (tensors, {}), tensors)


def samples(op: OpInfo, dtype: torch.dtype, backward: bool) -> Iterator[Call]:
    torch.manual_seed(SEED)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=backward):
        yield call_of(op, sample)


def judge(calls: Sequence[Call], backward: bool, random: bool) -> Verdict:
    """Batches go first, single samples only where the batch fails."""
    verdict = Verdict()
    known = [(call, eager(call, backward)) for call in calls]
    pairs = [(call, expected) for call, expected in known if expected is not None]
    verdict.samples = len(pairs)
    case = _Case(verdict, backward, random)
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        if len(batch) > 1 and case.is_good_together([call for call, _ in batch]):
            continue
        for number, (call, expected) in enumerate(batch, start):
            problem = case.problem(call, expected)
            if problem is not None:
                verdict.wrong.append(f"sample {number}: {problem}")
    return verdict


def eager(call: Call, backward: bool) -> Outcome | None:
    """None for the samples that are there to show what PyTorch refuses."""
    try:
        return _run(call.function, call.inputs(backward), backward)
    except Exception:
        return None


@dataclass(frozen=True, slots=True)
class _Case:
    """How the samples of one operation are run and compared."""

    verdict: Verdict
    backward: bool
    random: bool

    def is_good_together(self, calls: Sequence[Call]) -> bool:
        """Compared with eager's batch, which draws the same random numbers."""
        whole = together(calls)
        expected = eager(whole, self.backward)
        if expected is None:
            return False
        try:
            tensors = whole.inputs(self.backward)
            self._compare(self._direct(whole, tensors, expected), tensors, expected)
        except Exception:
            return False
        return True

    def problem(self, call: Call, expected: Outcome) -> str | None:
        graphs = self.verdict.graphs
        try:
            tensors = call.inputs(self.backward)
            self._compare(self._compiled(call, tensors, expected), tensors, expected)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self.verdict.left += self.verdict.graphs == graphs
        return None

    def _compare(self, function: Function, tensors: Sequence[Tensor], expected: Outcome) -> None:
        found = _run(function, tensors, self.backward)
        (_compare_kinds if self.random else _compare)(found, expected, self.backward)

    def _compiled(self, call: Call, tensors: Sequence[Tensor], expected: Outcome) -> Function:
        """Without Dynamo where it would take the call whole."""
        if all(map(_is_strided, [*tensors, *expected.results])):
            try:
                return self._direct(call, tensors, expected)
            except (DataDependentOutputException, DynamicOutputShapeException):
                pass
        torch._dynamo.reset()
        return replace(
            call, operation=torch.compile(call.operation, backend=self._backend)
        ).function

    def _direct(self, call: Call, tensors: Sequence[Tensor], expected: Outcome) -> Function:
        """Its results come as a flat sequence."""
        with torch.set_grad_enabled(self.backward):
            return self._backend(_graph_of(call, len(expected.results)), tensors)

    def _backend(self, gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Function:
        return compile_with(gm, inputs, STRICT, self.verdict.observe)


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
