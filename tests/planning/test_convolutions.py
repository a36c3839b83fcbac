"""Convolutions as products: what they compute, and which ones stay with the library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hemstitch import explain
from hemstitch.ir.calls import Operand
from hemstitch.ir.graph import call_of
from hemstitch.matmul.patterns.convolutions import convolution_of
from hemstitch.planning.plan import LibraryStep
from hemstitch.runtime.aten_forms import aten_form
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import assert_close, assert_trains_as_eager, plans_of
from tests.effort import some
from tests.written_out import written_out

aten = torch.ops.aten
OPTIONS = {"strict": True, "check": True}


def how(stride, padding):
    return (stride,), (padding,), (1,), False, (0,), 1


@settings(deadline=None, max_examples=150)
@given(
    *(st.integers(1, 5), st.integers(1, 4), st.integers(0, 5), st.integers(1, 12)),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(2, 3), st.booleans()),
)
def test_any_window(steps, stride, padding, length, batch, features, channels, has_bias):
    assume(length + 2 * padding >= steps)
    x = torch.randn(batch, length, channels, dtype=torch.float64).transpose(1, 2)
    weight = torch.randn(features, channels, steps, dtype=torch.float64)
    bias = torch.randn(features, dtype=torch.float64)
    given_bias, rest = (bias,) * has_bias, how(stride, padding)
    exact = F.conv1d(x, weight, *given_bias, stride=stride, padding=padding)
    operands = Operand(0), Operand(1), Operand(2) if has_bias else None
    tensors = [x, weight, *given_bias]
    (output,) = written_out(
        convolution_of, aten.convolution.default, tensors, (*operands, *rest), [exact]
    )
    assert_close([output], [exact], 1e-12)
    gradient = torch.randn_like(exact)
    given = [features], [stride], [padding], [1], False, [0], 1, [True] * 3
    exact = aten.convolution_backward.default(gradient, x, weight, *given)
    arguments = (*map(Operand, range(3)), (features,), *rest, (True, True, True))
    tensors = [gradient, x, weight]
    found = written_out(
        convolution_of, aten.convolution_backward.default, tensors, arguments, exact
    )
    assert_close(found, exact, 1e-12)


@settings(deadline=None, max_examples=50)
@given(*(st.integers(1, n) for n in (3, 4, 5, 3, 4)), st.booleans())
def test_a_window_of_one_element(batch, height, width, features, channels, has_bias):
    x = torch.randn(batch, height, width, channels, dtype=torch.float64).permute(0, 3, 1, 2)
    weight = torch.randn(features, channels, 1, 1, dtype=torch.float64)
    bias = (torch.randn(features, dtype=torch.float64),) * has_bias
    window = (1, 1), (0, 0), (1, 1), False, (0, 0), 1
    exact = F.conv2d(x, weight, *bias)
    operands = Operand(0), Operand(1), Operand(2) if has_bias else None
    tensors = [x, weight, *bias]
    (output,) = written_out(
        convolution_of, aten.convolution.default, tensors, (*operands, *window), [exact]
    )
    assert_close([output], [exact], 1e-12)
    gradient = torch.randn_like(exact)
    given = [features], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3
    exact = aten.convolution_backward.default(gradient, x, weight, *given)
    arguments = (*map(Operand, range(3)), (features,), *window, (True, True, True))
    tensors = [gradient, x, weight]
    found = written_out(
        convolution_of, aten.convolution_backward.default, tensors, arguments, exact
    )
    assert_close(found, exact, 1e-12)


def words(x, weight, bias):
    """A layer over texts: the features of a word lie side by side."""
    return F.conv1d((x * 2).transpose(1, 2), weight, bias, stride=2, padding=1).relu()


def text(length=40, channels=48, features=32, steps=4, dtype=torch.float32):
    shapes = (4, length, channels), (features, channels, steps), (features,)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("steps", some([4], [1]))
def test_forward_and_backward_in_kernels(steps):
    arguments = text(steps=steps)
    assert_trains_as_eager(words, arguments)


def bottleneck(x, first, bias, second):
    """Two layers over images, and what stands between and behind."""
    hidden = F.relu(F.conv2d(x * 2, first, bias))
    return F.relu(F.conv2d(hidden, second) + x)


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("channels_last", [False, True])
def test_bottlenecks_in_kernels(channels_last):
    shapes = (3, 24, 6, 5), (40, 24, 1, 1), (40,), (24, 40, 1, 1)
    arguments = [torch.randn(shape) for shape in shapes]
    if channels_last:
        arguments[0] = arguments[0].contiguous(memory_format=torch.channels_last)
    arguments = [argument.requires_grad_() for argument in arguments]
    assert not assert_trains_as_eager(bottleneck, arguments).library_calls


def shortcut(x, first, second, bias, strides=(2, 2)):
    """A layer of all elements of images and one of a few, whose gradients meet."""
    x = x.relu()
    return F.conv2d(x, first).relu(), F.conv2d(x, second, bias, stride=strides)


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize("strides", [(2, 2), (3, 1)])
@pytest.mark.parametrize(("height", "width"), [(6, 8), (7, 8), (6, 5), (1, 3), (1, 1)])
def test_strides_of_images(height, width, strides):
    shapes = (3, 24, height, width), (40, 24, 1, 1), (32, 24, 1, 1), (32,)
    arguments = [torch.randn(shape) for shape in shapes]
    arguments[0] = arguments[0].contiguous(memory_format=torch.channels_last)
    arguments = [argument.requires_grad_() for argument in arguments]
    assert_trains_as_eager(shortcut, arguments, strides)


@pytest.mark.usefixtures("kernels_multiply")
def test_blocks_of_rows_are_not_cut_by_the_zeros_between():
    """The gradient of what is added to the images is no kernel with that of the shortcut, which is
    there in every second row and column only."""
    shapes = (3, 24, 16, 16), (40, 24, 1, 1), (40, 24, 1, 1), (40,)
    arguments = [torch.randn(shape) for shape in shapes]
    arguments[0] = arguments[0].contiguous(memory_format=torch.channels_last).requires_grad_()
    report = explain(shortcut, *arguments, backward=True)
    assert not report.library_calls
    assert "M is several axes, the innermost of 2" in str(report)


def calls_of(function, *arguments, backward=True):
    plans = plans_of(function, arguments, generic_cpu(2, 16), backward=backward)
    steps = [step for _, plan in plans for step in plan.steps]
    return [aten_form(call_of(s.node)).name for s in steps if isinstance(s, LibraryStep)]


def test_no_call_is_left():
    assert calls_of(words, *text(256, 304, 32, 8)) == []


@pytest.mark.parametrize(
    ("why", "function", "shape"),
    [
        ("the library's own layout", lambda x, w, b: F.conv1d(x.relu(), w, b), (4, 48, 40)),
        ("two groups", lambda x, w, b: F.conv1d(x.mT, w[:, :24], b, groups=2), (4, 40, 48)),
        ("apart", lambda x, w, b: F.conv1d(x.mT, w, b, dilation=2), (4, 40, 48)),
        ("windows", lambda x, w, b: F.conv2d(x, w[..., None], b, padding=2), (2, 48, 9, 9)),
        ("padding", lambda x, w, b: F.conv2d(x, w[..., :1, None], b, padding=1), (2, 48, 9, 9)),
        ("no rows", lambda x, w, b: F.conv1d(x.mT, w, b), (0, 40, 48)),
    ],
)
def test_others_stay_with_the_library(why, function, shape):
    _, weight, bias = text()
    x = torch.randn(shape, requires_grad=True)
    calls = calls_of(function, x, weight, bias)
    assert "aten.convolution.default" in calls, why


@pytest.mark.usefixtures("kernels_multiply")
def test_windows_are_never_in_memory():
    """All windows together are four times as large as the text."""
    arguments = [argument.detach() for argument in text(256, 304, 32, 8)]
    report = explain(words, *arguments)
    assert report.library_calls == []
    assert report.bytes_written < 2 * arguments[0].nbytes
