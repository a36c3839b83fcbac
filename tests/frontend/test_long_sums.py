"""Sums, variances and norms are no less exact than eager's, however long and wherever they lie."""

from __future__ import annotations

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
