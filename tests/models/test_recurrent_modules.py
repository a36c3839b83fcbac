"""PyTorch's own recurrent modules, with the switch that docs/user/troubleshooting.md describes."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

BACKEND = os.environ.get("HEMSTITCH_TEST_BACKEND", "hemstitch")
LAYERS = {
    "lstm": lambda: nn.LSTM(6, 8, num_layers=2, batch_first=True),
    "bidirectional lstm": lambda: nn.LSTM(6, 8, bidirectional=True),
    "gru": lambda: nn.GRU(6, 8),
}
CELLS = {"lstm cell": lambda: nn.LSTMCell(6, 8), "gru cell": lambda: nn.GRUCell(6, 8)}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Strict: what falls back to eager would always agree with it."""
    monkeypatch.setenv("HEMSTITCH_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def results(module: nn.Module, function: nn.Module, x: Tensor) -> list[Tensor]:
    output = first(function(x))
    output.square().sum().backward()
    return [output.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def check(module: nn.Module, x: Tensor, graphs: int) -> None:
    ours = copy.deepcopy(module)
    counter = CompileCounterWithBackend(BACKEND)
    found = results(ours, torch.compile(ours, backend=counter), x)
    for mine, theirs in zip(found, results(module, module, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == graphs


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("allowed", (False, True))
def test_layers_are_compiled_where_the_switch_is_on(name: str, allowed: bool) -> None:
    with torch._dynamo.config.patch(allow_rnn=allowed):
        check(LAYERS[name](), torch.randn(4, 5, 6, requires_grad=True), graphs=int(allowed))


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_compiled_without_the_switch(name: str) -> None:
    check(CELLS[name](), torch.randn(4, 6), graphs=1)


@pytest.mark.parametrize("name", LAYERS)
def test_inference(name: str) -> None:
    module, x = LAYERS[name]().eval(), torch.randn(4, 5, 6)
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        found = first(torch.compile(module, backend=BACKEND, fullgraph=True)(x))
        torch.testing.assert_close(found, first(module(x)), rtol=1e-4, atol=1e-5)
