"""Gradients of products, cumulative or of whole axes, zeros among the factors or none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.compiled import assert_trains_as_eager, watched


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


def test_along_an_axis_of_one_element() -> None:
    """PyTorch gives the gradient that came in, whose memory is used again."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:])[:, 1:2].cumprod(1) * 2

    compiled, report = watched(program)
    memory = torch.randn(60)
    for strides in ((60, 20, 5, 1), (60, 4, 1, 12)):
        gradients = []
        for function in (compiled, program):
            x = memory.as_strided((1, 3, 4, 5), strides).detach().requires_grad_()
            y = function(x)
            gradients.append(torch.autograd.grad(y, x, torch.ones_like(y).cumsum(3).cos())[0])
        torch.testing.assert_close(*gradients)
    assert "hemstitch.cumprod_gradient.default" in report.library_calls


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_whole_axes(dtype: torch.dtype) -> None:
    def products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.prod(1), torch.prod(x, 0, keepdim=True), x.prod(dim=-1), (x * 1.1).prod(), x.prod()

    compiled, report = watched(products)
    close = {"rtol": 0.05, "atol": 1e-2} if dtype is torch.bfloat16 else {}
    for zeros in (0, 1, 2, 7):
        x = torch.rand(5, 4, 3, dtype=dtype).add(0.5).transpose(0, 2)
        x.reshape(-1)[:zeros] = 0
        x[0, :zeros, 1] = -0.0
        x.requires_grad_()
        expected = products(x)
        for ours, eager in zip(compiled(x), expected, strict=True):
            torch.testing.assert_close(ours, eager, **close)
            seed = torch.rand_like(eager)
            mine, theirs = (
                torch.autograd.grad(y, x, seed, retain_graph=True)[0] for y in (ours, eager)
            )
            torch.testing.assert_close(mine, theirs, **close)
    assert "cumprod" not in "".join(kernel.name for kernel in report.kernels)
    assert not report.library_calls


def test_products_of_what_is_no_number() -> None:
    """Beside a zero anywhere eager multiplies all others for each element."""
    inf, nan = float("inf"), float("nan")
    factors = [
        *([0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [nan, 0.0, 2.0], [inf, 0.0, 2.0], [nan, 2.0, 3.0]),
        *([-inf, 2.0, 3.0], [nan, inf, 0.0], [0.0, 0.0, nan], [-0.0, -2.0, inf], [-0.0, -2.0, 3.0]),
        *([inf, -inf, 2.0], [inf, inf, 0.0], [-0.0, 0.0, -1.0], [nan, nan, 1.0]),
    ]
    compiled, _ = watched(lambda x: x.prod(1))
    gradients = []
    for function in (compiled, lambda x: x.prod(1)):
        x = torch.tensor(factors, requires_grad=True)
        gradients += torch.autograd.grad(function(x), x, torch.linspace(-1, 2, len(factors)))
    torch.testing.assert_close(*gradients, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_only_the_whole_product_is_too_large(dtype: torch.dtype, zero: float) -> None:
    """Or too small. Eager divides what it is, unless an element is zero anywhere."""
    rows = [[3e38, 2.0, 1.0], [1e30, -1e30, 1.0], [1e20, 1e20, 1e-20], [1e-30, 1e-30, 1.0]]
    x = torch.tensor([*rows, [zero, 2.0, 3.0]], dtype=dtype, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    compiled, _ = watched(lambda x: x.prod(1))
    compiled(x).sum().backward()
    exact.prod(1).sum().backward()
    assert x.grad is not None and exact.grad is not None
    torch.testing.assert_close(x.grad, exact.grad.to(dtype))


def test_gradients_of_gradients_of_whole_products() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        one = torch.func.grad(lambda x: x.prod() + x.view(2, -1).prod(1).sum())
        return torch.func.vmap(torch.func.grad(lambda x: one(x).square().sum()))(x)

    x = torch.rand(3, 6)
    x[0, 1] = x[1, 2] = x[1, 3] = 0
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(twice, backend="hemstitch")(x), twice(x))


def test_a_product_may_be_written_to() -> None:
    """Where nobody differentiates it; what was read before keeps its value."""

    def program(x: torch.Tensor) -> torch.Tensor:
        result = x * 1
        for product in (x.prod(), x.prod(1), x.prod(0, keepdim=True), x.cumprod(1)):
            is_less = product < x.mean()
            result = torch.where(is_less, result, result * 2)
            product.neg_()
            result = torch.where(product < -1, result + 1, result)
        return result

    x = torch.rand(4, 4).add(0.5).requires_grad_()
    expected = program(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    for dynamic in (False, True):
        torch._dynamo.reset()
        options = {"strict": True}
        compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic, options=options)
        result = compiled(x)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], gradient)


@pytest.mark.parametrize("count", [None, 2, 7])
def test_vandermonde_matrices(count: int | None) -> None:
    x = torch.randn(6, 5)
    x[2, 3] = 0
    weights = torch.randn(6, 5, count or 5)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vander(x, N=count) * weights.to(x.dtype)

    report = assert_trains_as_eager(program, [x.requires_grad_()])
    assert report.library_calls == ["hemstitch.cumprod_gradient.default"]


def test_vandermonde_matrices_of_one_column_raise() -> None:
    with pytest.raises(RuntimeError, match="N must be greater than 1"):
        watched(lambda x: torch.linalg.vander(x, N=1) * 2)[0](torch.ones(3))
