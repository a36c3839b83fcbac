"""Gradients of a convolution's weights, as products with overlapping windows, are PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Convolution, ConvolutionBackward, Operand, StructuredCall
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType, TensorType
from hemstitch.matmul.patterns import weight_gradients
from hemstitch.matmul.patterns.weight_gradients import weight_gradient_of
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import host_target
from tests.compiled import assert_close, assert_trains_as_eager, plans_of
from tests.written_out import written_out

aten = torch.ops.aten
OPTIONS = {"strict": True, "check": True}
NARROW = generic_cpu(1, 8)


@settings(deadline=None, max_examples=60)
@given(
    *(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4)),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    *(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.booleans()),
)
def test_any_image(height, width, lines, columns, count, features, channels, zeros, channels_last):
    """Also where the gradient does not lie by channels."""
    if height + 2 * zeros[0] < lines or width + 2 * zeros[1] < columns or lines * columns == 1:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_gradients, "TYPE", DType.F64)
        numbers = replace(weight_gradients.CPU, gradient_l1_share=0.0)
        patch.setattr(weight_gradients, "CPU", numbers)
        x = torch.randn(count, height, width, channels, dtype=torch.float64).permute(0, 3, 1, 2)
        weight = torch.randn(features, channels, lines, columns, dtype=torch.float64)
        gradient = torch.randn_like(F.conv2d(x, weight, padding=zeros))
        if channels_last:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
        how = [1, 1], [*zeros], [1, 1], False, [0, 0], 1, [True] * 3
        exact = aten.convolution_backward.default(gradient, x, weight, [features], *how)
        rest = (1, 1), zeros, (1, 1), False, (0, 0), 1, (True, True, True)
        arguments = (*map(Operand, range(3)), (features,), *rest)
        tensors = [gradient, x, weight]
        opened = partial(weight_gradient_of, machine=NARROW)
        values = written_out(opened, aten.convolution_backward.default, tensors, arguments, exact)
        assert_close(values, exact, 1e-12)


def opened(machine=NARROW, *, sizes=(2, 48, 192, 192), features=16, window=(3, 3), **how):
    """What becomes of a convolution's gradients."""
    builder, (count, channels, height, width) = Builder(), sizes
    usual = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    how = {**usual, "mask": (True,) * 3, **how}
    shapes = (count, features, height, width), sizes, (features, channels, *window)
    dtype = how.pop("dtype", DType.F32)
    strides = [(s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]) for s in shapes]
    inputs = [builder.input(f"x{n}", n, s, dtype, strides[n]) for n, s in enumerate(shapes)]
    sizes = how["stride"], how["padding"], how["dilation"]
    convolution = Convolution(*sizes, False, (0, 0), how["groups"])
    results = tuple((TensorType(s, dtype), strides[n]) for n, s in enumerate(shapes))
    operation = ConvolutionBackward(convolution, how["mask"])
    call = StructuredCall(operation, tuple(strides), results)
    return weight_gradient_of(builder, call, inputs, machine)


@pytest.mark.parametrize(
    "how",
    [
        {"machine": generic_cpu(1, 16)},  # the library has an order for these
        {"machine": generic_cpu(1, 4)},
        {"sizes": (2, 16, 192, 192)},  # a line stays in L1
        {"window": (1, 1), "padding": (0, 0)},
        {"stride": (2, 2)},
        {"dilation": (2, 2)},
        {"groups": 4},
        {"mask": (True, False, True)},
        {"dtype": DType.BF16},
    ],
)
def test_others_are_the_librarys(how):
    assert opened() is not None
    assert opened(features=64, sizes=(2, 16, 192, 192)) is not None, "by the gradient's lines"
    assert opened(**how) is None


def step(x, weight, bias):
    """Smooth, so that no error decides a sign."""
    return F.silu(F.conv2d(x.sin(), weight, bias, padding=1) / 16).square().mean()


def layer(channels=48, features=16, size=(5, 192)):
    shapes = (2, channels, *size), (features, channels, 3, 3), (features,)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


@pytest.mark.usefixtures("kernels_multiply")
def test_a_step_multiplies_in_one_kernel(monkeypatch):
    """The gradient of the images is the library's."""
    numbers = replace(weight_gradients.CPU, gradient_lanes=host_target().lanes)
    monkeypatch.setattr(weight_gradients, "CPU", numbers)
    report = assert_trains_as_eager(step, layer())
    assert len(report.library_calls) == 2
    assert sorted(kernel.ops.count("dot") for kernel in report.kernels)[-2:] == [0, 3]


@pytest.mark.parametrize(("lanes", "dots"), [(8, 3), (16, 0)])
def test_what_the_library_does_slowly_is_opened_by_default(lanes, dots):
    machine = generic_cpu(1, lanes)
    *_, (_, plan) = plans_of(step, layer(size=(96, 192)), machine, backward=True)
    nodes = [node for kernel in plan.kernels for group in kernel.groups for node in group.members]
    assert sum(node.op is Op.DOT for node in nodes) == dots


def test_errors_are_no_larger_than_the_librarys(monkeypatch):
    numbers = replace(weight_gradients.CPU, gradient_lanes=host_target().lanes)
    monkeypatch.setattr(weight_gradients, "CPU", numbers)
    x, weight, _ = (each.detach() for each in layer(size=(64, 192)))
    x, seed = (
        y.contiguous(memory_format=torch.channels_last) for y in (x, torch.randn(2, 16, 64, 192))
    )

    def gradient(seed, x, weight):
        how = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
        return aten.convolution_backward.default(seed, x, weight, None, *how)[1]

    exact = gradient(seed.double(), x.double(), weight.double())
    compiled = torch.compile(gradient, backend="hemstitch", options=OPTIONS)
    ours, library = (
        (f(seed, x, weight) - exact).norm() / exact.norm() for f in (compiled, gradient)
    )
    assert ours < 1.5 * library
