"""Calls with effects that PyTorch orders by tokens: checks of the library, and operations that a
program registers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from tests.compiled import watched

TOLD: list[str] = []


@torch.library.custom_op("hemstitch_tests::parts_told", mutates_args=())
def parts_told(x: Tensor, what: str) -> tuple[Tensor, Tensor]:
    TOLD.append(what)
    return x + 1, x * 2


@torch.library.custom_op("hemstitch_tests::only_told", mutates_args=())
def only_told(x: Tensor, what: str) -> Tensor:
    TOLD.append(what)
    return x.exp()


parts_told.register_fake(lambda x, what: (torch.empty_like(x), torch.empty_like(x)))
only_told.register_fake(lambda x, what: torch.empty_like(x))
only_told.register_autograd(lambda ctx, gradient: (only_told(gradient, "gradient"), None))
for operation in (parts_told, only_told):
    _register_effectful_op(operation._opoverload, _EffectType.ORDERED)


def told(x: Tensor, y: Tensor) -> Tensor:
    first, _ = parts_told(y.sin(), "first")
    only_told(y, "unread")
    _, second = parts_told(first.cos(), "second")
    return only_told(x * 2, "third").sin() * second


def solved(x: Tensor, y: Tensor) -> Tensor:
    square = x @ x.mT + torch.eye(4, dtype=x.dtype)
    return torch.linalg.cholesky(square) + torch.linalg.solve(square, y) + torch.linalg.inv(square)


@pytest.mark.parametrize("program", [told, solved])
def test_values_order_and_gradients(program: Any) -> None:
    x, y = torch.randn(3, 4, 4, dtype=torch.float64), torch.randn(3, 4, 4, dtype=torch.float64)
    compiled, report = watched(program)
    for needs_gradient in (False, True):
        x.requires_grad_(needs_gradient)
        eager, *ours = [_results(function, x, y) for function in (program, compiled, compiled)]
        for results, order in ours:
            assert order == eager[1]
            torch.testing.assert_close(results, eager[0])
    assert report.library_calls and not any("effects" in name for name in report.library_calls)


def _results(function: Any, x: Tensor, y: Tensor) -> tuple[list[Tensor], list[str]]:
    TOLD.clear()
    result = function(x, y)
    gradients = torch.autograd.grad(result.sum(), x) if x.requires_grad else ()
    return [result, *gradients], [*TOLD]


def test_backward_reads_the_result_itself() -> None:
    x, y = torch.randn(2, 3, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    compiled, report = watched(torch.linalg.solve)
    result = compiled(x, y)
    assert not report.kernels  # none copies it
    result.sum().backward()
    changed = compiled(x, y)
    with torch.no_grad():
        changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()


@pytest.mark.parametrize("transform", [torch.fft.ifft2, torch.fft.fft])
def test_gradients_are_parts_of_what_the_library_gives(transform: Any) -> None:
    x, other = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
    seed = torch.randn(3, 4, 5, dtype=torch.complex64)
    compiled, report = watched(transform)
    for _ in range(2):
        [gradient] = torch.autograd.grad(compiled(x), x, seed)
        [expected] = torch.autograd.grad(transform(x), x, seed)
        torch.testing.assert_close(gradient, expected)
        assert gradient.stride() == expected.stride()
        compiled(x).backward(seed)  # and once more: they add up
        transform(other).backward(seed)
    torch.testing.assert_close(x.grad, other.grad * 1)
    assert not report.kernels
