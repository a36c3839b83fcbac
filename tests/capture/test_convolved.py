"""Weights of convolutions that are frozen are laid out once."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

import hemstitch
from hemstitch.driver.verified import difference

OPTIONS = {"freeze": True, "strict": True, "check": True}
LAY, CONVOLVE = (
    "mkldnn._reorder_convolution_weight.default",
    "mkldnn._convolution_pointwise.default",
)

pytestmark = [
    pytest.mark.skipif(
        not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        reason="PyTorch without oneDNN lays nothing out",
    ),
    pytest.mark.usefixtures("kernels_multiply"),
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


CONVOLUTIONS = {
    "3 x 3": partial(nn.Conv2d, 6, 8, 3),
    "padded, without a bias": partial(nn.Conv2d, 6, 8, 3, padding=1, bias=False),
    "a stride": partial(nn.Conv2d, 6, 8, 3, stride=2),
    "apart": partial(nn.Conv2d, 6, 8, 3, dilation=2),
    "in groups": partial(nn.Conv2d, 6, 8, 3, groups=2),
    "each channel alone": partial(nn.Conv2d, 6, 6, 3, groups=6),
    "1 x 1 with a stride": partial(nn.Conv2d, 6, 8, 1, stride=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(name: str, lies: torch.memory_format, dtype: torch.dtype) -> None:
    layer = CONVOLUTIONS[name]().to(dtype)
    made = nn.Sequential(layer, nn.ReLU())
    x = torch.randn(3, 6, 11, 9).to(dtype).contiguous(memory_format=lies)
    function = torch.compile(made, backend="hemstitch", options=OPTIONS)
    for _ in range(2):
        with torch.no_grad():
            found, eager = function(x), made(x)
            assert found.stride() == eager.stride()
            assert difference(found, eager) < (1e-5 if dtype is torch.float32 else 1e-2)
            layer.weight.mul_(1.5)


def test_only_what_the_library_does() -> None:
    """A window of one element is a product, whose weight a kernel packs."""
    made = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 1), nn.ReLU())
    x = torch.randn(2, 6, 12, 12)
    with torch.no_grad():
        report = hemstitch.explain(made, x, options=OPTIONS)
    assert Counter(report.library_calls) == {CONVOLVE: 1}
    assert report.once.count(LAY) == 1


def test_all_that_may_not_be_multiplied_in_kernels() -> None:
    made = nn.Sequential(nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 1), nn.ReLU())
    x = torch.randn(2, 32, 18, 18)
    with torch.no_grad():
        multiplied, called = (
            hemstitch.explain(made, x, options={**OPTIONS, "products": products})
            for products in (True, False)
        )
    assert not multiplied.library_calls
    assert Counter(called.library_calls) == {CONVOLVE: 2} and called.once.count(LAY) == 2


def test_sizes_that_only_a_call_knows() -> None:
    made = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU())
    function = torch.compile(made, backend="hemstitch", options=OPTIONS, dynamic=True)
    for count in (2, 5):
        x = torch.randn(count, 6, 10, 10 + count)
        with torch.no_grad():
            assert difference(function(x), made(x)) < 1e-5


def test_a_transposed_one_stays() -> None:
    made = nn.Sequential(nn.ConvTranspose2d(6, 8, 3), nn.ReLU())
    x = torch.randn(2, 6, 10, 10)
    with torch.no_grad():
        report = hemstitch.explain(made, x, options=OPTIONS)
    assert report.library_calls == ["aten.convolution.default"] and not report.once
