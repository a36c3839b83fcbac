"""Cumulative sums and products: in one kernel with what is before and behind them, and right."""

from __future__ import annotations

import re

import pytest
import torch

import hemstitch
from hemstitch.capture.translation import capture

STRICT = {"strict": True}


def cumulative(x):
    """What sampling by nucleus asks: the shares so far, of what they come to."""
    sums = torch.softmax(x, -1).cumsum(-1)
    return sums / sums[:, -1:]


ONE_KERNEL = {
    "rows": lambda x: x.cumsum(-1),
    "columns": lambda x: (x * 2).cumsum(0) + 1,
    "products": lambda x: (1 + x / 100).cumprod(-1),
    "shares": cumulative,
    "backwards": lambda x: x.flip(1).cumsum(1).flip(1),
    "twice": lambda x: x.cumsum(-1).tanh().cumsum(-1),
    "its sums": lambda x: x.cumsum(-1).square().sum(-1),
    "sums across": lambda x: torch.softmax(x, -1).cumsum(-1).mean(0),
    "differences": lambda x: x.cumsum(1)[:, 1:] - x.cumsum(1)[:, :-1],
    "both ways": lambda x: x.cumsum(0) + x.cumsum(1),
    "counted": lambda x: (x > 0).cumsum(-1),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_is_one_kernel_and_as_exact_as_eager(name):
    function, x = ONE_KERNEL[name], torch.randn(67, 131)
    report = hemstitch.explain(function, x, options=STRICT)
    assert (report.kernel_count, report.library_calls) == (1, [])
    exact, eager = function(x.double()), function(x)
    found = torch.compile(function, backend="hemstitch", options=STRICT)(x)
    assert found.dtype == eager.dtype
    error, theirs = ((y.double() - exact).norm() for y in (found, eager))
    assert error <= 2 * theirs + 1e-6 * exact.double().norm()


def test_what_is_read_beside_it_does_not_leave_the_loop():
    report = hemstitch.explain(lambda x: (x * 2).cumsum(-1) + 1, torch.randn(64, 1000))
    (kernel,) = report.kernels
    assert (kernel.bytes_again, kernel.scratch_bytes) == (0, 0)
    assert kernel.ir.count("lanes") == 2  # the accumulator's, and one loop


@pytest.mark.parametrize("shape", [(64, 1000), (7, 100, 65), (300, 16), (5, 9000)])
def test_a_lane_scans_a_column(shape):
    """What the lanes have come to waits in L1; nothing crosses from columns to lanes and back."""
    x = torch.randn(shape)
    report = hemstitch.explain(lambda x: (x * 2).cumsum(-2) + 1, x, options=STRICT)
    (kernel,) = report.kernels
    assert (kernel.bytes_again, kernel.bytes_read + kernel.bytes_written) == (0, 8 * x.numel())
    (columns,) = re.findall(r"f64\[(\d+)\]  # scans so far", kernel.ir)
    assert int(columns) <= min(shape[-1], 4096)
    assert "crosses two axes" not in kernel.ir


@pytest.mark.parametrize("x", [torch.randn(5000, 3), torch.randn(64, 1000).t()], ids=["few", "far"])
def test_columns_that_fill_no_vector_or_lie_apart_cross_to_the_lanes(x):
    report = hemstitch.explain(lambda x: (x * 2).cumsum(0), x, options=STRICT)
    assert "scans so far" not in report.kernels[0].ir


def test_few_columns_of_many_rows_are_scanned_side_by_side():
    report = hemstitch.explain(lambda x: x.cumsum(0) / x.sum(1, keepdim=True), torch.randn(999, 64))
    assert "scans so far" in report.kernels[0].ir


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[1.0, float("inf"), -float("inf"), 2.0], [float("nan"), 1.0, -0.0, 3.0]]),
        torch.zeros(3, 0),
        torch.tensor(3.0),
        torch.tensor([5.0]),
        torch.arange(200, dtype=torch.int32).view(4, 50),
        torch.full((3, 40), 100, dtype=torch.int8),
        torch.ones(5, 33, dtype=torch.bool),
        torch.rand(3, 77, dtype=torch.float64),
        torch.rand(60, 20).t(),
        torch.rand(3, 1).expand(3, 70),
    ],
    ids=lambda x: f"{str(x.dtype)[6:]}{list(x.shape)}",
)
@pytest.mark.parametrize("operation", [torch.cumsum, torch.cumprod])
def test_any_argument(operation, x):
    def function(x):
        return operation(x, -1), operation(x, 0, dtype=torch.float64)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="hemstitch", options=STRICT)
    for found, wanted in zip(compiled(x), function(x)):
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_gradients():
    x = torch.randn(8, 50, requires_grad=True)

    def function(x):
        return (x.cumsum(-1) ** 2).sum()

    report = hemstitch.explain(function, x, backward=True, options=STRICT)
    assert (report.kernel_count, report.library_calls) == (2, [])
    (found,) = torch.autograd.grad(
        torch.compile(function, backend="hemstitch", options=STRICT)(x), x
    )
    (wanted,) = torch.autograd.grad(function(x.double()), x)
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()


def test_few_long_rows_are_the_librarys_on_a_gpu():
    """One program would walk a row."""

    def names(x):
        gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.cumsum(-1))(x)
        graph = capture(gm, [x]).graph
        return [o.value.op.value for o in graph.outputs]

    with torch._subclasses.fake_tensor.FakeTensorMode():
        long, many = (2, 100_000), (1000, 100_000)
        assert names(torch.empty(long)) == ["cumsum"]
        assert names(torch.empty(many, device="cuda")) == ["cumsum"]
        assert names(torch.empty(long, device="cuda")) == ["result"]
