"""Steps without the loss's value: what is not computed then, and that gradients are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemstitch.report.explain import explain

ROWS, CLASSES = 64, 100
Loss = Callable[[Tensor], Tensor]


def classes(logits: Tensor) -> Tensor:
    labels = torch.arange(ROWS, device=logits.device) % CLASSES
    return F.cross_entropy(logits, labels)


def bits(logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, (torch.cos(logits.detach()) > 0).float())


def squares(logits: Tensor) -> Tensor:
    return F.mse_loss(logits, torch.ones_like(logits))


LOSSES = [classes, bits, squares]


def step(loss: Loss, x: Tensor, weight: Tensor, **options: Any) -> list[Tensor]:
    """The loss, the logits, the gradient of the weight."""

    def program(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits = x @ weight
        return loss(logits), logits

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True, **options})
    value, logits = compiled(x, weight)
    [gradient] = torch.autograd.grad(value, weight)
    return [value, logits, gradient]


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 32), torch.randn(32, CLASSES, requires_grad=True)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_is_never_computed_has_the_same_gradients(loss: Loss) -> None:
    given = arguments()
    value, logits, gradient = step(loss, *given)
    unseen, same_logits, same_gradient = step(loss, *given, loss_every=0)
    torch.testing.assert_close(value, loss(logits))
    assert unseen.isnan()
    torch.testing.assert_close(same_logits, logits, rtol=0, atol=0)
    torch.testing.assert_close(same_gradient, gradient)


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_is_left_of_the_loss(loss: Loss) -> None:
    """Forward is the product, and one kernel that writes NaN."""
    x, weight = arguments()

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return loss(x @ weight)

    report = explain(program, x, weight, backward=True, options={"loss_every": 0})
    forward = [kernel for kernel in report.kernels if kernel.graph == "forward"]
    assert all(kernel.reads == {} for kernel in forward)
    assert sum(size for kernel in forward for size in kernel.writes.values()) == 4
    usual = explain(program, x, weight, backward=True)
    assert report.bytes_read < usual.bytes_read


def test_every_third_call_computes_it() -> None:
    x, weight = arguments()

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return squares(x @ weight)

    torch._dynamo.reset()
    compiled = torch.compile(
        program, backend="hemstitch", options={"loss_every": 3, "strict": True}
    )
    expected, [gradient] = squares(x @ weight), torch.autograd.grad(squares(x @ weight), weight)
    seen = []
    for _ in range(7):
        value = compiled(x, weight)
        torch.testing.assert_close(torch.autograd.grad(value, weight)[0], gradient)
        seen.append(not value.isnan())
        if seen[-1]:
            torch.testing.assert_close(value, expected)
    assert seen == [True, False, False, True, False, False, True]


def test_only_numbers_with_a_gradient_are_losses() -> None:
    """An accuracy has rank 0 as well; a mutated buffer comes before the results."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(CLASSES)

        def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = self.norm(x @ weight)
            accuracy = (logits.argmax(-1) == 0).float().mean()
            return accuracy, classes(logits), logits

    torch.manual_seed(0)
    x, weight = arguments()
    model, same = Model(), Model()
    expected = same(x, weight)
    torch._dynamo.reset()
    options = {"loss_every": 0, "strict": True}
    accuracy, loss, logits = torch.compile(model, backend="hemstitch", options=options)(x, weight)
    assert loss.isnan()
    torch.testing.assert_close([accuracy, logits], [expected[0], expected[2]])
    torch.testing.assert_close(model.norm.running_mean, same.norm.running_mean)
    gradients = [torch.autograd.grad(each, weight)[0] for each in (loss, expected[1])]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_a_step_of_an_optimiser_learns_without_the_loss() -> None:
    torch.manual_seed(0)
    x, start = arguments()
    learned = []
    for every in (1, 0):
        weight = start.detach().clone().requires_grad_()
        optimiser = torch.optim.SGD([weight], lr=0.1)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, w: classes(x @ w), backend="hemstitch", options={"loss_every": every}
        )
        for _ in range(3):
            optimiser.zero_grad()
            compiled(x, weight).backward()
            optimiser.step()
        learned.append(weight.detach())
    torch.testing.assert_close(*learned)
