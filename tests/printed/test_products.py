"""Products of matrices as Triton kernels, emulated: one kernel, and no less exact than eager."""

from __future__ import annotations

import pytest
import torch

from benchmarks.products import PRODUCTS
from hemstitch.explain import explain

pytest.importorskip("triton")
OPTIONS = {"target": "interpret", "strict": True, "check": True}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TYPED = [(case, dtype) for case in PRODUCTS for dtype in DTYPES]
NAMES = [f"{case.name}, {dtype}" for case, dtype in TYPED]


def many(results):
    return results if isinstance(results, tuple) else (results,)


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


def check(function, arguments):
    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options=OPTIONS, dynamic=False)(*arguments)
    exact = function(*(argument.double() for argument in arguments))
    eager = function(*arguments)
    for new, old, true in zip(many(found), many(eager), many(exact), strict=True):
        assert new.dtype is old.dtype and new.shape == old.shape
        assert error(new, true) <= 2 * error(old, true) + 1e-7


@pytest.mark.parametrize(("case", "dtype"), TYPED, ids=NAMES)
def test_a_workload_is_one_kernel_and_right(case, dtype):
    for width in case.odd:
        arguments = [x.to(dtype) for x in case.arguments(37, width)]
        report = explain(case.function, *arguments, options=OPTIONS)
        assert (report.kernel_count, report.library_calls) == (1, [])
        check(case.function, arguments)


def test_wholly_masked_rows_are_nan_as_in_eager():
    attention = PRODUCTS[0].function
    q, k, v = (torch.randn(1, 2, 20, 16) for _ in range(3))
    mask = torch.zeros(1, 1, 20, 20)
    mask[..., 3, :] = -torch.inf
    mask[..., 5, 7:] = -torch.inf
    found = torch.compile(attention, backend="hemstitch", options=OPTIONS)(q, k, v, mask)
    expected = attention(q, k, v, mask)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found[:, :, 3].isnan().all() and not found[:, :, 5].isnan().any()


def test_what_is_not_there_is_not_multiplied():
    """Lanes beyond a row of 17 would be infinite here, and infinity times zero is no zero."""

    def function(x, weight):
        return torch.relu((1 / (x - x)) * 0.0 + x @ weight)

    def scaled(x, weight, scale):
        return torch.tanh(x * scale @ weight)

    x, weight = torch.randn(5, 17), torch.randn(17, 30)
    check(scaled, [x, weight, torch.randn(17)])
    strided = torch.full((5, 64), torch.inf)[:, :17].copy_(x)
    check(scaled, [strided, weight, torch.randn(17)])
    assert torch.isnan(function(x, torch.randn(17, 17))).all()


def test_backward_of_attention_multiplies_too():
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v

    def gradients(compiled, dtype):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 3, 25, 16).to(dtype).requires_grad_() for _ in range(3)]
        (compiled(*inputs) ** 2).sum().backward()
        return [each.grad for each in inputs]

    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="hemstitch", options=OPTIONS)
    exact = gradients(attention, torch.float64)
    for new, old, true in zip(
        gradients(compiled, torch.float32), gradients(attention, torch.float32), exact
    ):
        assert error(new, true) <= 2 * error(old, true) + 1e-7


def test_three_products_share_a_kernel():
    def mixed(x, a, b, c):
        return torch.relu(x @ a) * (x @ b) + x @ c

    arguments = [torch.randn(shape) for shape in ((40, 20), *[(20, 30)] * 3)]
    assert explain(mixed, *arguments, options=OPTIONS).kernel_count == 1
    check(mixed, arguments)


def test_sizes_may_change():
    function = PRODUCTS[1].function
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="hemstitch", options=OPTIONS, dynamic=True)
    for rows in (3, 50, 130):
        arguments = [torch.randn(shape) for shape in ((rows, 20), (40, 20), (40,), (rows, 40))]
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
