"""Steps of PyTorch's own optimisers, compiled: whole lists of parameters in few kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from hemstitch.report.explain import Report
from tests.compiled import watched

SHAPES = [(64, 32), (32,), (128,), (16, 8, 3, 3), (8,), (1,), (100, 7), (7,), (5, 5, 5)]
MANY = 12

Make = Callable[[Iterable[Tensor]], Optimizer]
OPTIMISERS: dict[str, tuple[Make, int]] = {  # and kernels of all graphs together
    "SGD": (lambda p: SGD(p, lr=0.1), 1),
    # Its first step, which has no momentum yet, is another graph than the others.
    "SGD with momentum": (lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01), 2),
    "Adam": (lambda p: Adam(p, lr=0.01), 2),
    "AdamW": (lambda p: AdamW(p, lr=0.01), 2),
    "AdamW, amsgrad": (lambda p: AdamW(p, lr=0.01, amsgrad=True), 2),
    "RMSprop": (lambda p: RMSprop(p, lr=0.01), 2),
    "Adagrad": (lambda p: Adagrad(p, lr=0.01), 2),
}


def parameters(count: int) -> list[Tensor]:
    torch.manual_seed(0)
    found = [torch.randn(SHAPES[k % len(SHAPES)], requires_grad=True) for k in range(count)]
    for parameter in found:
        parameter.grad = torch.randn_like(parameter)
    return found


def updated(make: Make, wrap: Callable[[Any], Any], steps: int) -> list[Tensor]:
    held = parameters(MANY)
    optimiser = make(held)
    step = wrap(optimiser.step)
    for _ in range(steps):
        step()
    return [parameter.detach() for parameter in held]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_over_many_tensors_are_eagers_and_few_kernels(name: str) -> None:
    make, most = OPTIMISERS[name]
    reports: list[Report] = []

    def wrap(step: Callable[[], None]) -> Callable[[], None]:
        compiled, report = watched(step)
        reports.append(report)
        return compiled

    for ours, eager in zip(updated(make, wrap, 3), updated(make, lambda f: f, 3)):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)
    assert 1 <= reports[0].kernel_count <= most


def lamb(
    weights: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]
) -> None:
    """You and others (2020), one step without bias correction."""
    for w, g, m, v in zip(weights, gradients, means, squares):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        update = m / (v.sqrt() + 1e-6) + 0.01 * w
        w.sub_(update * (0.1 * w.norm() / update.norm()))


def clipped(gradients: list[Tensor]) -> None:
    total = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
    scale = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)


@pytest.mark.parametrize(("function", "lists", "most"), [(lamb, 4, 6), (clipped, 1, 6)])
def test_norms_of_many_tensors(function: Callable[..., None], lists: int, most: int) -> None:
    torch.manual_seed(1)

    def fresh() -> list[list[Tensor]]:
        torch.manual_seed(1)
        return [[torch.rand(shape) + 0.1 for shape in SHAPES * 2] for _ in range(lists)]

    given, expected = fresh(), fresh()
    compiled, report = watched(function)
    compiled(*given)
    assert report.kernel_count <= most
    function(*expected)
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6)
