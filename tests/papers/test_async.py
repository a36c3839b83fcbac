"""F2-18 (FusionStitching 2020, appendix B.4): graphs compiled asynchronously."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn import functional as F

from hemstitch.driver.background import submit_to_worker
from hemstitch.errors import GraphWarning

ASYNCHRONOUS = {"asynchronous": True}


class Gate:
    """Keeps the worker of the process from its next job until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        submit_to_worker(lambda: self._opened.wait())

    def open(self) -> None:
        """Back when all jobs are done."""
        done = threading.Event()
        submit_to_worker(done.set)
        self._opened.set()
        assert done.wait(240)


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(x @ weight, -1), 0.2) * torch.tanh(x.sum())


def step(function, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(5)
    result = function(x, weight)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), (x, weight))]


def operations(function, *arguments) -> set[str]:
    with torch.profiler.profile() as profile:
        function(*arguments)
    return {event.key for event in profile.key_averages()}


def test_F2_18_first_calls_run_eager_and_later_ones_compiled_with_the_same_results() -> None:
    torch._dynamo.reset()
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(16, 12, requires_grad=True)
    function = torch.compile(program, backend="hemstitch", options=ASYNCHRONOUS)
    gate = Gate()
    first = step(function, x, weight)
    assert "aten::tanh" in operations(step, function, x, weight)
    gate.open()
    assert "aten::tanh" not in operations(step, function, x, weight)
    torch.testing.assert_close(step(function, x, weight), first)


def test_F2_18_a_failure_in_the_background_leaves_eager_running(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no plan today")

    torch._dynamo.reset()
    monkeypatch.setattr("hemstitch.pipeline.planned", refuse)
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(16, 12, requires_grad=True)
    function = torch.compile(program, backend="hemstitch", options=ASYNCHRONOUS)
    gate = Gate()
    first = step(function, x, weight)
    gate.open()
    with pytest.warns(GraphWarning, match="no plan today"):
        again = step(function, x, weight)
    torch.testing.assert_close(again, first)
    torch.testing.assert_close(step(function, x, weight), first)
