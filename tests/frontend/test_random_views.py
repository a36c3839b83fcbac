"""Random programs of views, arithmetic and writes through `torch.compile`: results, arguments and
gradients are eager's, and so is the memory that they are in."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hemstitch.errors import GraphWarning
from tests.effort import examples

FIRST = 2  # where parts begin, a number that the program is given
MOST = 3000  # elements of what may become larger
MOST_AXES = 4
RESULTS = 3


def _rest(x: Tensor, axis: int, first: int) -> Tensor:
    start = min(first, x.shape[axis] - 1)
    return x.narrow(axis, start, x.shape[axis] - start)


def _half(x: Tensor, axis: int) -> Tensor:
    return x.narrow(axis, 0, (x.shape[axis] + 1) // 2)


Step = Callable[[Tensor, int, int], Sequence[Tensor]]
VIEWS: Mapping[str, Step] = {
    "rest": lambda x, axis, first: [_rest(x, axis, first)],
    "half": lambda x, axis, first: [_half(x, axis)],
    "transposed": lambda x, axis, first: [x.transpose(0, -1)],
    "moved": lambda x, axis, first: [x.movedim(0, -1)],
    "squeezed": lambda x, axis, first: [x.squeeze()],
    "flat": lambda x, axis, first: [x.reshape(-1)],
    "even": lambda x, axis, first: [x[..., ::2]],
    "last": lambda x, axis, first: [x.select(axis, x.shape[axis] - 1)],
    "halves": lambda x, axis, first: x.split((x.shape[axis] + 1) // 2, axis),
    "rows": lambda x, axis, first: x.unbind(axis),
    "diagonal": lambda x, axis, first: [x.diagonal() if x.dim() > 1 else x],
    "detached": lambda x, axis, first: [x.detach()],
}
LARGER: Mapping[str, Step] = {
    "axis": lambda x, axis, first: [x.unsqueeze(axis)],
    "repeated": lambda x, axis, first: [x.expand(2, *x.shape)],
    "windows": lambda x, axis, first: [x.unfold(axis, min(2, x.shape[axis]), 1)],
    "twice": lambda x, axis, first: [torch.cat([x, x], axis)],
}
VALUES: Mapping[str, Step] = {
    "plus": lambda x, axis, first: [x + 1.5],
    "tanh": lambda x, axis, first: [x.tanh()],
    "sum": lambda x, axis, first: [x.sum(axis)],
    "scaled": lambda x, axis, first: [x * x.mean()],
    "positive": lambda x, axis, first: [torch.where(x > 0, x, -x)],
}
WRITES: Mapping[str, Callable[[Tensor, int, int], Any]] = {
    "add": lambda x, axis, first: x.add_(1),
    "scale": lambda x, axis, first: x.mul_(0.5),
    "clear": lambda x, axis, first: x.select(axis, 0).zero_(),
    "reverse": lambda x, axis, first: x.copy_(x.flip(0) * 2),
    "add to half": lambda x, axis, first: _half(x, axis).add_(0.25),
}


@dataclass(frozen=True, slots=True)
class Program:
    """`steps`: an operation's name, which value it takes, an axis. `returned`: which values."""

    steps: tuple[tuple[str, int, int], ...]
    returned: tuple[int, ...]

    def __call__(self, arguments: Sequence[Tensor], first: int) -> list[Tensor]:
        values = [*arguments]
        for name, place, axis in self.steps:
            values += _applied(name, values[place % len(values)], axis, first)
        return [values[place % len(values)] for place in self.returned]


def _applied(name: str, x: Tensor, axis: int, first: int) -> Sequence[Tensor]:
    if x.dim() == 0:
        return [x + 1]
    axis %= x.dim()
    if name in WRITES:
        if 0 in x.stride():  # one element is in several places
            return [x * 2]
        WRITES[name](x, axis, first)
        return [x]
    if name in LARGER and (x.numel() > MOST or x.dim() == MOST_AXES):
        return [x.sum(axis)]
    return [*{**VIEWS, **LARGER, **VALUES}[name](x, axis, first)]


def program_of(random: Random, *, writes: bool) -> Program:
    names = [*VIEWS, *VIEWS, *LARGER, *VALUES, *(WRITES if writes else ())]
    if writes:
        names.remove("windows")  # AOTAutograd refuses to write through them
    steps = tuple(
        (random.choice(names), random.getrandbits(16), random.getrandbits(16))
        for _ in range(random.randint(2, 8))
    )
    return Program(steps, tuple(random.getrandbits(16) for _ in range(RESULTS)))


def arguments_of(random: Random) -> list[Tensor]:
    """Each within memory of its own: dense or with gaps, in any order of axes, from any place."""
    found = []
    for _ in range(random.randint(1, 3)):
        shape = [random.choice((1, 2, 4, 5, 8)) for _ in range(random.randint(1, 3))]
        step, strides = random.choice((1, 1, 2)), [0] * len(shape)
        for axis in random.sample(range(len(shape)), len(shape)):
            strides[axis] = step
            step *= shape[axis] + (step > 1 and random.random() < 0.3)
        found.append(torch.randn(2000).as_strided(shape, strides, random.choice((0, 37))))
    return found


def _copies(arguments: Sequence[Tensor], with_gradients: bool) -> list[Tensor]:
    copies = []
    for x in arguments:
        memory = torch.as_strided(x, (2000,), (1,), 0).clone()
        copy = memory.as_strided(x.shape, x.stride(), x.storage_offset())
        copies.append(copy.requires_grad_(with_gradients))
    return copies


@dataclass(frozen=True, slots=True)
class Outcome:
    """`strides`: of results. `together`: which results and arguments are in the same memory, and
    where in it."""

    results: list[Tensor]
    strides: list[list[int]]
    arguments: list[Tensor]
    gradients: list[Tensor]
    together: list[tuple[object, ...]]


def run(program: Any, arguments: Sequence[Tensor], writes: bool, gradients: bool) -> Outcome:
    leaves = _copies(arguments, gradients)
    given = [x * 1 for x in leaves] if writes and gradients else leaves
    results = program(given, FIRST)
    memory = [x.untyped_storage().data_ptr() for x in (*given, *results)]
    together = [
        (
            *(place == other for other in memory),
            x.storage_offset() if place in memory[:-RESULTS] else 0,
        )
        for x, place in zip(results, memory[-RESULTS:])
    ]
    losses = [x.square().sum() for x in results if x.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    found = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    return Outcome(results, [*map(strides_of, results)], given, found, together)


def strides_of(x: Tensor) -> list[int]:
    """Those that say where elements are."""
    return [step for size, step in zip(x.shape, x.stride()) if size > 1] if x.numel() else []


@settings(max_examples=examples(24), deadline=None)
@given(st.integers(0, 1 << 40))
def test_results_and_where_they_are(seed: int) -> None:
    random = Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    writes, gradients, dynamic = (random.random() < 0.5 for _ in range(3))
    program, arguments = program_of(random, writes=writes), arguments_of(random)
    compiled = torch.compile(program.__call__, backend="hemstitch", dynamic=dynamic)
    try:
        expected = run(program, arguments, writes, gradients)
    except RuntimeError:  # writes to a view that autograd, or memory, does not allow
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphWarning)
        warnings.filterwarnings("ignore", ".* laid out as only the call knows", GraphWarning)
        found = run(compiled, arguments, writes, gradients)
    torch.testing.assert_close(found.results, expected.results, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.arguments, expected.arguments, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-3, atol=1e-3)
    assert found.strides == expected.strides
    if not (writes and gradients):  # AOTAutograd itself gives views of what was written
        assert found.together == expected.together
