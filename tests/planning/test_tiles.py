"""Values read along one axis and written along another cross in tiles, and arrive."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

pytestmark = pytest.mark.filterwarnings("error:H007")  # a kernel that cannot be built


def pool_norm(x):
    pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
    return F.layer_norm(pooled, pooled.shape[-1:])


def every_second(x):
    return F.layer_norm(x[..., ::2].transpose(-1, -2), x.shape[-2:-1])


CASES = [
    (pool_norm, (9, 20, 22, 26)),  # lanes and copies with a rest
    (pool_norm, (8, 16, 8, 34)),  # one lane more than a vector
    (pool_norm, (8, 33, 8, 16)),
    (pool_norm, (4, 16, 8, 200)),  # blocks of 50 rows
    (every_second, (3, 8, 32, 41)),
]


def tiles_of(kernel: Kernel) -> int:
    return sum(buffer.why == "crosses two axes" for buffer in kernel.buffers)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    assert found.shape == exact.shape
    return float((found.detach().double() - exact.detach()).abs().max())


@pytest.mark.parametrize(("function", "shape"), CASES)
def test_values(target, function, shape):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    exact_x = x.detach().double().requires_grad_()
    torch._dynamo.reset()
    found, exact = torch.compile(function, backend="hemstitch")(x), function(exact_x)
    gradient = torch.randn_like(found)
    eager = function(x)
    assert error(found, exact) <= 2 * error(eager, exact) + 1e-6
    (found_grad,) = torch.autograd.grad(found, x, gradient)
    (exact_grad,) = torch.autograd.grad(exact, exact_x, gradient.double())
    (eager_grad,) = torch.autograd.grad(eager, x, gradient)
    assert error(found_grad, exact_grad) <= 2 * error(eager_grad, exact_grad) + 1e-6


@pytest.mark.parametrize(("function", "shape"), CASES)
def test_tiles_are_used(function, shape):
    for _, plan in plans_of(function, [torch.randn(shape)], generic_cpu(2, 8)):
        assert sum(tiles_of(step.stitched.kernel) for step in plan.kernels) == 1


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (torch.sin, (64, 64)),
        (lambda x: torch.softmax(x, -1), (32, 64)),
        (pool_norm, (4, 8192, 4, 32)),  # no tile of the task's memory would hold it
        (pool_norm, (9, 20, 22, 10)),  # 5 rows would not fill vectors
    ],
)
def test_no_tile_without_need(function, shape):
    for _, plan in plans_of(function, [torch.randn(shape)], generic_cpu(2, 8)):
        assert not any(tiles_of(step.stitched.kernel) for step in plan.kernels)


def test_stores_cross_beside_other_work():
    """97 rows have no blocks of equal length; sums of squares and a far store share a loop."""
    for _, plan in plans_of(pool_norm, [torch.randn(9, 16, 8, 194)], generic_cpu(2, 8)):
        assert [tiles_of(step.stitched.kernel) for step in plan.kernels] == [1]


def test_what_is_saved_for_backward_crosses_back():
    def affine(x, weight):
        pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
        return F.layer_norm(pooled, pooled.shape[-1:], weight)

    x, weight = (torch.randn(s, requires_grad=True) for s in ((56, 96, 28, 28), (96,)))
    ((_, plan),) = plans_of(affine, [x, weight], generic_cpu(2, 8))
    (step,) = plan.kernels
    assert tiles_of(step.stitched.kernel) == 2


def test_half_types_and_strided_arguments(target):
    x = torch.randn(9, 40, 22, 26)[:, ::2].to(torch.bfloat16)
    torch._dynamo.reset()
    found, exact = torch.compile(pool_norm, backend="hemstitch")(x), pool_norm(x.double())
    assert error(found, exact) <= 2 * error(pool_norm(x), exact)


def test_nan_and_inf_stay_in_their_rows(target):
    x = torch.randn(9, 20, 22, 26)
    x[3, 5, 4, 7], x[0, 0, 0, 0] = torch.nan, torch.inf
    torch._dynamo.reset()
    found, eager = torch.compile(pool_norm, backend="hemstitch")(x), pool_norm(x)
    assert torch.equal(found.isnan(), eager.isnan())
