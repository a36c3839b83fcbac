"""Results that a program does not differentiate: no zeros are made or read for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from hemstitch.calls.unused_gradients import LEAST_BYTES, Backward
from hemstitch.driver.compiler import Compiled, finish
from hemstitch.errors import UnsupportedError
from hemstitch.planning.plan import KernelStep

ROWS, WORDS = 64, 1000
assert ROWS * WORDS * 4 >= LEAST_BYTES


class Scores(nn.Module):
    """Gives a loss, and the scores that it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(32, 32)
        self.output = nn.Linear(32, WORDS)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.output(torch.tanh(self.hidden(x)))
        return nn.functional.cross_entropy(scores, labels), scores


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 32, requires_grad=True), torch.randint(WORDS, (ROWS,))


def gradients(model: nn.Module, target: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(target, [*model.parameters()]))


USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "loss": lambda loss, scores: loss,
    "scores": lambda loss, scores: scores.square().sum(),
    "both": lambda loss, scores: loss + scores.square().sum(),
    "zeros": lambda loss, scores: loss + 0 * scores.sum(),
}


@pytest.mark.parametrize("first", USES)
@pytest.mark.parametrize("later", USES)
def test_gradients_whatever_is_used(first: str, later: str) -> None:
    torch._dynamo.reset()
    model, (x, labels) = Scores(), arguments()
    compiled = torch.compile(model, backend="hemstitch")
    for use in (first, later, later, first):
        expected = gradients(model, USES[use](*model(x, labels)))
        found = gradients(model, USES[use](*compiled(x, labels)))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Compiled]:
    found: list[Compiled] = []

    def finished(*given: Any, **options: Any) -> Compiled:
        found.append(finish(*given, **options))
        return found[-1]

    monkeypatch.setattr("hemstitch.backend.finish", finished)
    return found


def test_one_backward_graph_that_never_reads_zeros(compiles: list[Compiled]) -> None:
    torch._dynamo.reset()
    model, (x, labels) = Scores(), arguments()
    compiled = torch.compile(model, backend="hemstitch")
    for _ in range(3):
        compiled(x, labels)[0].backward()
    _, backward = compiles
    given = {node.attr.name: node for node in backward.graph.inputs}
    read = {tensor.node for step in backward.plan.steps for tensor in tensors_of(step)}
    assert given["tangents_1"] in read
    assert given.get("tangents_2") not in read


def tensors_of(step: Any) -> list[Any]:
    if isinstance(step, KernelStep):
        return list(step.stitched.tensors)
    return [operand.tensor for operand in step.operands]


def test_small_gradients_are_read_as_zeros(compiles: list[Compiled]) -> None:
    """A graph for each choice of small ones would cost more than it saves."""
    torch._dynamo.reset()
    x = torch.randn(8, 8, requires_grad=True)
    compiled = torch.compile(lambda x: (x.sin(), x.cos()), backend="hemstitch")
    for number in (0, 0, 1, 0):
        results = compiled(x)
        found = torch.autograd.grad(results[number].sum(), x)
        expected = torch.autograd.grad((x.sin(), x.cos())[number].sum(), x)
        torch.testing.assert_close(found, expected)
    assert len(compiles) == 2


def test_gradients_that_are_none() -> None:
    """As AOTAutograd gives them beside arguments that were written to: their memory was read, which
    ended the process. What was saved is never None."""

    def traced(saved: Tensor, tangents_1: Tensor, tangents_2: Tensor) -> list[Tensor]:
        return [tangents_1 * saved + tangents_2.sum(), tangents_2 * 2]

    def run(graph: GraphModule) -> Callable[[list[Any]], Any]:
        return lambda arguments: graph(*arguments)

    x, y, z = torch.randn(5), torch.randn(5), torch.randn(3)
    backward = Backward(run, make_fx(traced, tracing_mode="fake")(x, y, z))
    for arguments in ([x, y, z], [x, y, None], [x, None, z], [x, None, None]):
        _, first, second = arguments
        first = torch.zeros(5) if first is None else first
        second = torch.zeros(3) if second is None else second
        torch.testing.assert_close([*backward(arguments)], traced(x, first, second))
    with pytest.raises(UnsupportedError):
        backward([None, y, z])
