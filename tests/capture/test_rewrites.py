"""Rewrites that a user brings along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from hemstitch.report.explain import explain

aten = torch.ops.aten


def product_plus(bias: Any, x: Any, y: Any) -> Any:
    return aten.addmm.default(bias, x, y)


def product_then_plus(bias: Any, x: Any, y: Any) -> Any:
    return aten.add.Tensor(aten.mm.default(x, y), bias)


REWRITES = [(product_plus, product_then_plus)]


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


def arguments(*, train: bool) -> list[Tensor]:
    return [torch.randn(s, requires_grad=train) for s in ((5, 8), (6, 8), (6,))]


@pytest.mark.parametrize("train", [False, True])
def test_a_rewrite_reaches_the_graph(train: bool) -> None:
    given = arguments(train=train)
    options = {"rewrites": REWRITES, "products": False, "strict": True}
    report = explain(layer, *given, backward=train, options=options)
    assert "aten.addmm.default" not in report.library_calls
    assert "aten.mm.default" in report.library_calls
    assert "aten.addmm.default" in explain(layer, *given, backward=train).library_calls


def test_values_and_gradients_are_right() -> None:
    given = arguments(train=True)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="hemstitch", options={"rewrites": REWRITES})
    found, expected = compiled(*given), layer(*given)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.square().sum(), given) for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_rewrite_sees_both_passes() -> None:
    """sigmoid's gradient from its input instead of its result."""

    def by_result(gradient: Any, y: Any) -> Any:
        return aten.sigmoid_backward.default(gradient, y)

    def by_formula(gradient: Any, y: Any) -> Any:
        return aten.mul.Tensor(gradient, aten.mul.Tensor(y, aten.rsub.Scalar(y, 1)))

    x = torch.randn(40, requires_grad=True)
    torch._dynamo.reset()
    options = {"rewrites": [(by_result, by_formula)], "strict": True}
    compiled = torch.compile(torch.sigmoid, backend="hemstitch", options=options)
    [found] = torch.autograd.grad(compiled(x).sum(), x)
    [expected] = torch.autograd.grad(torch.sigmoid(x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_replacement_of_another_shape_is_an_error() -> None:
    def row(bias: Any, x: Any, y: Any) -> Any:
        return bias

    torch._dynamo.reset()
    options = {"rewrites": [(product_plus, row)]}
    model = nn.Linear(8, 6)
    with pytest.raises(BackendCompilerFailed, match="keeps shapes and element types"):
        torch.compile(model, backend="hemstitch", options=options)(torch.randn(5, 8))


def test_what_does_not_match_is_left_alone() -> None:
    x = torch.randn(4)
    torch._dynamo.reset()
    compiled = torch.compile(torch.exp, backend="hemstitch", options={"rewrites": REWRITES})
    torch.testing.assert_close(compiled(x), torch.exp(x))
