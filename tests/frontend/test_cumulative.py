"""Gradients of cumulative products, zeros among the factors or none."""

from __future__ import annotations

import pytest
import torch

from tests.compiled import watched


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients(dim: int, dtype: torch.dtype) -> None:
    compiled, report = watched(lambda x: (x * 2).cumprod(dim) + torch.cumprod(x, dim=dim))
    for zeros in (0, 1, 7):
        x = torch.rand(5, 4, 6, dtype=dtype).transpose(0, 2)
        x.reshape(-1)[:zeros] = 0
        x[0, :zeros, 1] = 0
        x.requires_grad_()
        expected = (x * 2).cumprod(dim) + torch.cumprod(x, dim=dim)
        seed = torch.rand_like(expected)
        (ours,), (eager,) = (torch.autograd.grad(v, x, seed) for v in (compiled(x), expected))
        torch.testing.assert_close(ours, eager, equal_nan=True)
        assert ours.stride() == eager.stride()
    assert report.library_calls.count("hemstitch.cumprod_gradient.default") == 2


def test_gradients_of_gradients() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        one = torch.func.grad(lambda x: x.cumprod(0).sum())
        return torch.func.vmap(torch.func.grad(lambda x: one(x).square().sum()))(x)

    x = torch.rand(3, 5)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(twice, backend="hemstitch")(x), twice(x))


def test_what_has_no_gradient() -> None:
    compiled, report = watched(lambda x: (x.cumprod(0), x.long().cumprod(0)))
    x = torch.rand(4, 3) * 3
    for ours, eager in zip(compiled(x), (x.cumprod(0), x.long().cumprod(0)), strict=True):
        torch.testing.assert_close(ours, eager)
    assert not report.library_calls
