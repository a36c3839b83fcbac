"""Windows of an axis, which overlap, as both targets read them: no copy of them is made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hemstitch.report.explain import explain

pytest.importorskip("triton")


def moving_average(x: Tensor) -> Tensor:
    return torch.tanh(x).unfold(0, 5, 2).mean(-1)


def windows(x: Tensor) -> Tensor:
    return (x + 1).unfold(-1, 3, 1).softmax(-1)


def patches(x: Tensor) -> Tensor:
    """Of images: windows down and to the right."""
    return x.exp().unfold(0, 4, 3).unfold(1, 3, 2).amax((-1, -2))


@pytest.mark.parametrize("target", ["cpu", "interpret"])
@pytest.mark.parametrize("function", [moving_average, windows, patches])
@pytest.mark.parametrize("shape", [(40, 33), (7, 100)])
def test_windows_are_eagers_and_one_kernel(target, function, shape):
    x = torch.randn(shape)
    options = {"target": target, "strict": True, "check": True}
    torch._dynamo.reset()
    result = torch.compile(function, backend="hemstitch", options=options)(x)
    torch.testing.assert_close(result, function(x))
    report = explain(function, x, options=options)
    assert (report.kernel_count, report.library_calls) == (1, [])
