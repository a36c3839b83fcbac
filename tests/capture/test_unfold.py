"""Windows of an axis, which may overlap: kernels read them where they lie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hemstitch import explain
from tests.compiled import assert_trains_as_eager

OPTIONS = {"strict": True, "check": True}
AFTER = {
    "elementwise": lambda w: torch.exp(w) * 2,
    "sum of each window": lambda w: w.sum(-1),
    "sum over windows": lambda w: w.tanh().sum(0),
    "softmax of each": lambda w: w.softmax(-1),
    "turned": lambda w: w.transpose(0, -1).contiguous(),
    "as it is": lambda w: w,
}


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    *(st.integers(-3, 2), st.integers(1, 5), st.integers(1, 4)),
    *(st.booleans(), st.booleans(), st.sampled_from([*AFTER])),
)
def test_any_windows(shape, axis, size, step, is_made, is_turned, after):
    axis %= len(shape)
    x = torch.randn(shape).t() if is_turned and len(shape) == 2 else torch.randn(shape)
    if size > x.shape[axis]:
        return

    def function(x: Tensor) -> Tensor:
        before = torch.relu(x) + 1 if is_made else x
        return AFTER[after](before.unfold(axis, size, step))

    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(x)
    torch.testing.assert_close(found, function(x))


def moving(x: Tensor, weight: Tensor) -> Tensor:
    """A moving average of five lines."""
    return torch.einsum("ncw,w->nc", torch.tanh(x).unfold(0, 5, 1), weight.softmax(0))


def test_backward_is_eagers() -> None:
    x, weight = torch.randn(40, 9, requires_grad=True), torch.randn(5, requires_grad=True)
    assert_trains_as_eager(moving, [x, weight])


def test_windows_are_not_in_memory() -> None:
    x = torch.randn(1000, 64)
    report = explain(lambda x: x.exp().unfold(0, 7, 1).amax(-1), x)
    assert len(report.kernels) == 1 and not report.library_calls
    assert report.bytes_read + report.bytes_written < 3 * x.nbytes


@pytest.mark.parametrize(
    ("why", "function", "shape"),
    [
        ("no axis", lambda x: x.unfold(0, 1, 1) + 1, ()),
        ("empty windows", lambda x: x.unfold(0, 0, 1) + 1, (5,)),
        ("no lines", lambda x: x.unfold(1, 2, 1) + 1, (0, 4)),
        ("longer than the axis once was", lambda x: F.pad(x, (3, 0)).unfold(0, 4, 2) + 1, (2,)),
    ],
)
def test_others_are_right_too(why, function, shape) -> None:
    x = torch.randn(shape)
    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(x)
    torch.testing.assert_close(found, function(x), msg=why)
