"""Sums, variances and norms are no less exact than eager's, however long and wherever they lie."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.effort import some

SHAPES = some(
    [((3, 400_000), (-1,)), ((7, 3, 20_000), (1, 2)), ((4, 8, 57, 57), (0, 2, 3))],
    [((4, 3_000_000), (-1,)), ((64, 4097), (-1,)), ((200_000, 40), (0,)), ((3_000_000,), (0,))],
)


@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_no_less_exact_than_eager(shape, axes):
    def program(x):
        sums = x.sum(axes), (x * x).sum(axes), x.var(axes), torch.linalg.vector_norm(x, 2, axes)
        return (*sums, x.amax(axes), x.logsumexp(axes))

    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    unit = torch.finfo(torch.float32).eps / 2
    x = torch.rand(shape)
    for found, eager, exact in zip(compiled(x), program(x), program(x.double())):
        errors = [float(((y.double() - exact) / exact).norm()) for y in (found, eager)]
        assert errors[0] <= 2 * errors[1] + unit
    x.view(-1)[5] = torch.inf
    assert torch.equal(compiled(x)[0].isinf(), x.sum(axes).isinf())
    assert not compiled(x)[0].isnan().any()


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_deviations_of_very_large_and_small_numbers(scale):
    def program(x):
        return x.std(1), x.std(0), *torch.std_mean(x, 1), x.var(0).sqrt(), x.std()

    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 4096).view(64, 64) * scale
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    for found, eager in zip(compiled(x), program(x)):
        torch.testing.assert_close(found, eager, rtol=1e-5, atol=0)


COLUMNS = some(
    [((50, 2000, 6), (0, 1))],
    [((200_000, 40), (0,)), ((3, 100_000), (-1,)), ((300, 300, 30), (0,)), ((1_000_000, 1), (0,))],
)


@pytest.mark.parametrize(("shape", "axes"), COLUMNS, ids=str)
def test_sums_of_double_precision(shape, axes):
    """Which no type is wider than that processors add up in."""

    def program(x):
        return x.sum(axes), (x * x).sum(axes), x.mean(axes)

    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    x = torch.rand(shape, dtype=torch.float64) + 10
    wide = x.numpy().astype(np.longdouble)
    exact = wide.sum(axes), (wide * wide).sum(axes), wide.mean(axes)
    for result, eager, true in zip(compiled(x), program(x), exact):
        errors = [np.abs((y.numpy() - true) / true).max() for y in (result, eager)]
        assert errors[0] <= 2 * errors[1] + torch.finfo(torch.float64).eps
    x.view(-1)[5] = torch.inf
    assert torch.equal(compiled(x)[0].isinf(), x.sum(axes).isinf())


IN_MEMORY = some(
    [((1000, 5), (0,)), ((40, 1001, 7), (1,)), ((100, 3, 500, 5), (0, 2))],
    [((64, 33), (0,)), ((50, 40, 9, 30), (0, 2)), ((200, 1000, 8), (0, 1)), ((1, 5000, 3), (1,))],
)


@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_in_memory(dynamic):
    """Of columns, whose rows are added to memory one by one."""
    torch.manual_seed(0)
    for shape, axes in IN_MEMORY:
        torch._dynamo.reset()
        options = {"strict": True}
        program = partial(torch.sum, dim=axes)
        compiled = torch.compile(program, backend="hemstitch", options=options, dynamic=dynamic)
        for dtype in (torch.float32, torch.float64):
            x = torch.rand(shape).to(dtype)
            exact = x.numpy().astype(np.longdouble).sum(axes)
            results = [call(x).numpy() for call in (compiled, program)]
            errors = [float((np.abs(y - exact) / exact).max()) for y in results]
            assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps, (shape, dtype, errors)
            x.view(-1)[5] = torch.inf
            torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_beside_scans(dynamic):
    def program(x):
        return x.sum(1), (x * x).sum(1), x.cumsum(1)[:, -1]

    torch._dynamo.reset()
    options = {"strict": True}
    compiled = torch.compile(program, backend="hemstitch", options=options, dynamic=dynamic)
    x = torch.rand(2, 200_000) + 1000
    x[0, 7] = -torch.inf
    unit = torch.finfo(torch.float32).eps
    for result, eager, exact in zip(compiled(x), program(x), program(x.double())):
        assert torch.equal(result.isinf(), eager.isinf())
        error = ((result.double() - exact) / exact)[exact.isfinite()]
        assert not error.numel() or float(error.abs().max()) <= 4 * unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("axes", some([(0,), (0, 2)], [(1,), (2,), (0, 1, 2)]), ids=str)
def test_deviations_far_from_zero(dtype, axes):
    def program(x):
        return x.std(axes), *torch.var_mean(x, axes, correction=0)

    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    for mean, outlier in ((0, 0), (1e3, 0), (1e6, 0), (1e7, 0), (1e7, 1e12)):
        x = torch.randn(40, 9, 50, dtype=torch.float64) + mean
        x[0, 0, 0] += outlier
        x = x.to(dtype)
        for result, eager, exact in zip(compiled(x), program(x), program(x.double())):
            errors = [float((y.double() - exact).norm()) for y in (result, eager)]
            assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps * float(exact.norm())


@pytest.mark.parametrize("dtype", some([torch.float32], [torch.float64, torch.bfloat16]), ids=str)
def test_means_beside_variances_of_infinities(dtype):
    def program(x):
        alone = torch.var_mean(x[:, None], 1)
        return *torch.var_mean(x, 1), *torch.std_mean(x, 0), *torch.var_mean(x), *alone

    torch._dynamo.reset()
    x = torch.randn(6, 8).to(dtype)
    x[2, 3], x[3, 1], x[4, 2] = torch.inf, -torch.inf, torch.nan
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    for result, eager in zip(compiled(x), program(x)):
        torch.testing.assert_close(result, eager, equal_nan=True)
