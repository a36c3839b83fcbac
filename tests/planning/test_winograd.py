"""Convolutions with windows of 3 x 3, as Winograd multiplies them, are PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from hemstitch import explain
from hemstitch.ir.calls import Operand
from hemstitch.matmul.patterns import winograd
from hemstitch.matmul.patterns.winograd import winograd_of
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import assert_close, assert_trains_as_eager, watched
from tests.effort import some
from tests.written_out import written_out

aten = torch.ops.aten
OPTIONS = {"strict": True, "check": True}


@settings(deadline=None, max_examples=60)
@given(
    *(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2), st.integers(0, 2)),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(2, 3), st.booleans()),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_any_image(height, width, above, left, count, features, channels, has_bias, strides):
    above, left = (
        1 if stride == 2 else pad for stride, pad in zip(strides, (above, left), strict=True)
    )
    if height + 2 * above < 3 or width + 2 * left < 3:
        return
    with pytest.MonkeyPatch.context() as patch:
        numbers = replace(winograd.CPU, winograd_channels=1, winograd_tiles=1)
        patch.setattr(winograd, "CPU", numbers)
        x = torch.randn(count, height, width, channels, dtype=torch.float64).permute(0, 3, 1, 2)
        weight = torch.randn(features, channels, 3, 3, dtype=torch.float64)
        bias = torch.randn(features, dtype=torch.float64)
        padding, some = (above, left), (bias,) * has_bias
        exact = F.conv2d(x, weight, *some, stride=strides, padding=padding)
        operands = Operand(0), Operand(1), Operand(2) if has_bias else None
        rest = strides, padding, (1, 1), False, (0, 0), 1
        tensors = [x, weight, *some]
        (output,) = written_out(
            winograd_of, aten.convolution.default, tensors, (*operands, *rest), [exact]
        )
        assert_close([output], [exact], 1e-12)
        gradient = torch.randn_like(exact)
        how = [*strides], [*padding], [1, 1], False, [0, 0], 1, [True] * 3
        exact = aten.convolution_backward.default(gradient, x, weight, [features], *how)
        arguments = (*map(Operand, range(3)), (features,), *rest, (True, True, True))
        tensors = [gradient, x, weight]
        found = written_out(
            winograd_of, aten.convolution_backward.default, tensors, arguments, exact
        )
        assert_close(found, exact, 1e-12)


def layers(x, first, bias, second, *, stride):
    """Two layers over images, and what stands between and behind: smooth, so that no error decides
    a sign."""
    hidden = F.silu(F.conv2d(x, first, bias, stride=stride, padding=1) / 16)
    return F.silu(F.conv2d(hidden, second, padding=(1, 0)) / 16 + 1)


def images(count=3, channels=32, features=48, height=13, width=16):
    shapes = (count, channels, height, width), (features, channels, 3, 3)
    shapes += (features,), (channels, features, 3, 3)
    arguments = [torch.randn(shape) for shape in shapes]
    arguments[0] = arguments[0].contiguous(memory_format=torch.channels_last)
    return [argument.requires_grad_() for argument in arguments]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("stride", some([1], [2, (2, 1)]))
def test_forward_and_backward_in_kernels(stride):
    function, arguments = partial(layers, stride=stride), images(height=19, width=24)
    assert not assert_trains_as_eager(function, arguments).library_calls


@pytest.mark.usefixtures("kernels_multiply")
def test_errors_are_about_as_large_as_the_librarys():
    x, weight = images(channels=128, features=128, height=28, width=28)[:2]
    seed = torch.randn(3, 128, 28, 28).contiguous(memory_format=torch.channels_last)

    def all_of(convolve, dtype):
        given = [x.detach().to(dtype).requires_grad_(), weight.detach().to(dtype).requires_grad_()]
        result = convolve(*given, padding=1)
        return [result, *torch.autograd.grad(result, given, seed.to(dtype))]

    torch._dynamo.reset()
    compiled = torch.compile(F.conv2d, backend="hemstitch", options=OPTIONS)
    exact = all_of(F.conv2d, torch.float64)
    ours, theirs = (
        [(a - b).norm() / b.norm() for a, b in zip(all_of(f, torch.float32), exact, strict=True)]
        for f in (compiled, F.conv2d)
    )
    # What the gradient of weights multiplies are sums on either side, rounded before.
    for mine, library, most in zip(ours, theirs, (1.5, 1.5, 3), strict=True):
        assert mine < most * library


@pytest.mark.usefixtures("kernels_multiply")
def test_the_sums_stay_in_the_kernel_that_multiplies():
    x, weight, *_ = (argument.detach() for argument in images(height=16))
    report = explain(lambda x, w: F.conv2d(x.exp(), w, padding=1), x, weight)
    multiplying = [kernel for kernel in report.kernels if "dot" in kernel.ops]
    assert [kernel.ops.count("dot") for kernel in multiplying] == [24]
    assert "exp" not in multiplying[0].ops, "made 16 times"
    result = x.nbytes * weight.shape[0] // weight.shape[1]
    assert multiplying[0].bytes_written < 3 * result, "sums in memory would be four times as many"


class Layer(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(32, 48, 3, stride, 1, bias=stride > 1)

    def forward(self, x):
        return F.relu(self.convolution(x))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("share", [100.0, 1e-3])
def test_sums_of_frozen_windows_are_made_once(stride, share, monkeypatch):
    """The library, which multiplies where kernels are slow, does not look at them."""

    def units(threads, lanes):
        nominal = generic_cpu(threads, lanes).matrix_units
        return {dtype: replace(each, share=share) for dtype, each in nominal.items()}

    monkeypatch.setattr("hemstitch.driver.compiler.measured_units", units)
    layer = Layer(stride).eval()
    x = torch.randn(2, 32, 33, 20).contiguous(memory_format=torch.channels_last)
    compiled, report = watched(layer, freeze=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-4)
            layer.convolution.weight.mul_(-2)
    assert bool(report.library_calls) == (share < 1) and report.once
    if not report.library_calls:  # no kernel before makes sums
        dots = 24 if stride == 1 else 25
        assert next(kernel.ops.count("dot") for kernel in report.kernels) == dots


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(
    ("why", "behind", "inside"),
    [
        ("one operation", torch.relu, "maximum"),
        ("something for each channel", lambda x: F.relu(x * channels(x) + 1), "maximum"),
        ("the sum of two of its values", lambda x: x * torch.sigmoid(x), "sigmoid"),
        (
            "a last value that is read twice",
            lambda x: (F.relu(x), F.relu(x).sum((2, 3))),
            "maximum",
        ),
        ("others read what it begins with", lambda x: (F.relu(x + 1), x.amax(1)), None),
    ],
)
@pytest.mark.parametrize("height", some([13], [16]))
def test_what_follows_is_made_in_parts(why, behind, inside, height):
    """Beside the tiles, and not by who reads the images."""
    x, weight, *_ = (argument.detach() for argument in images(height=height))

    def function(x, w):
        return behind(F.conv2d(x, w, padding=1))

    compiled, report = watched(function)
    found, exact = compiled(x, weight), function(x.double(), weight.double())
    assert_close(*([y] if isinstance(y, torch.Tensor) else y for y in (found, exact)), 1e-5)
    (multiplying,) = (kernel for kernel in report.kernels if "dot" in kernel.ops)
    assert {"maximum", "sigmoid"}.intersection(multiplying.ops) == (
        {inside} if inside else set()
    ), why


def channels(x):
    return torch.linspace(-1, 1, x.shape[1]).view(-1, 1, 1)


@pytest.mark.usefixtures("kernels_multiply")
def test_results_lie_as_others_read_them():
    """Not in eight parts, one for each place in a tile."""
    x, weight, *_ = (argument.detach() for argument in images(height=16))
    beside = torch.randn(3, 48, 16, 16).contiguous(memory_format=torch.channels_last)
    report = explain(lambda x, w, y: (F.conv2d(x, w, padding=1) + y).relu(), x, weight, beside)
    assert len(report.kernels) == 3  # sums of windows, the convolution, and what follows
    assert [*report.kernels[-1].reads.values()] == [beside.nbytes] * 2


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(
    ("why", "function", "shape"),
    [
        ("few channels", lambda x, w: F.conv2d(x[:, :16], w[:, :16], padding=1), (2, 48, 16, 16)),
        ("few tiles", lambda x, w: F.conv2d(x, w, padding=1), (2, 48, 6, 6)),
        ("a stride without zeros", lambda x, w: F.conv2d(x, w, stride=2), (2, 48, 33, 33)),
        ("a long stride", lambda x, w: F.conv2d(x, w, stride=3, padding=1), (2, 48, 33, 33)),
        ("apart", lambda x, w: F.conv2d(x, w, dilation=2), (2, 48, 20, 20)),
        ("wide padding", lambda x, w: F.conv2d(x, w, padding=3), (2, 48, 16, 16)),
        ("half types", lambda x, w: F.conv2d(x.half(), w.half()), (2, 48, 18, 18)),
        ("groups", lambda x, w: F.conv2d(x, w[:, :24], groups=2), (2, 48, 18, 18)),
    ],
)
def test_others_stay_with_the_library(why, function, shape):
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    report = explain(function, x, torch.randn(48, 48, 3, 3))
    assert "aten.convolution.default" in report.library_calls, why


@pytest.mark.usefixtures("kernels_multiply")
def test_what_is_infinite_is_no_number_in_its_tiles_and_nowhere_else():
    x, weight, *_ = (argument.detach() for argument in images(height=16))
    x[0, 0, 6, 6] = float("inf")
    torch._dynamo.reset()
    found = torch.compile(F.conv2d, backend="hemstitch", options=OPTIONS)(x, weight, padding=1)
    is_finite = found.isfinite()
    assert not is_finite[0, :, 5:8, 5:8].any()
    is_finite[0, :, 4:8, 4:8] = True
    assert is_finite.all()
