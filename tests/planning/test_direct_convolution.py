"""Convolutions of images of few channels are products of sums of lines, and PyTorch's."""

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
from hemstitch.driver.verified import difference
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Operand
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Contract, Loop, statements
from hemstitch.matmul.lowering.blocking import block_matmuls
from hemstitch.matmul.lowering.tile_matmul import TileMatmul
from hemstitch.matmul.patterns import direct_convolution as few_channels
from hemstitch.matmul.patterns.direct_convolution import direct_convolution_of
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import assert_close, assert_trains_as_eager, plans_of
from tests.written_out import written_out

aten = torch.ops.aten
OPTIONS = {"strict": True, "check": True}


@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("together", [False, True])
@given(
    *(st.integers(1, 13), st.integers(1, 9), st.integers(2, 11), st.integers(1, 4)),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans()),
    *(st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(*[st.integers(0, 3)] * 2)),
)
def test_any_image(
    together, height, width, lines, columns, channels, features, count, bias, strides, zeros
):
    """`together`: two lines of results, or each by itself."""
    if height + 2 * zeros[0] < lines or width + 2 * zeros[1] < columns:
        return
    with pytest.MonkeyPatch.context() as patch:
        least = dict.fromkeys(("direct_features", "direct_columns", "direct_steps"), 1)
        patch.setattr(few_channels, "CPU", replace(few_channels.CPU, **least))
        patch.setattr(few_channels, "TYPE", DType.F64)
        for name in ("OF_LINES", "OF_RESULTS"):
            patch.setattr(few_channels, name, 0 if together else 1000)
        x = torch.randn(count, height, width, channels, dtype=torch.float64).permute(0, 3, 1, 2)
        weight = torch.randn(features, channels, lines, columns, dtype=torch.float64)
        some = (torch.randn(features, dtype=torch.float64),) * bias
        exact = F.conv2d(x, weight, *some, stride=strides, padding=zeros)
        operands = Operand(0), Operand(1), Operand(2) if bias else None
        rest = strides, zeros, (1, 1), False, (0, 0), 1
        (found,) = written_out(
            direct_convolution_of,
            *(aten.convolution.default, [x, weight, *some], (*operands, *rest), [exact]),
        )
        assert_close([found], [exact], 1e-12)


def first_layer(x, weight, bias, *, stride, padding):
    return F.relu(F.conv2d(x, weight, bias, stride=stride, padding=padding))


def images(channels=3, features=40, lines=7, columns=7, height=37, width=41, count=2):
    shapes = (count, channels, height, width), (features, channels, lines, columns), (features,)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(
    ("sizes", "stride", "padding", "dots"),
    [
        ({"channels": 2, "lines": 5, "columns": 11, "features": 33}, 1, 0, [0, 0, 7, 0]),
        ({"channels": 3, "lines": 7, "height": 38}, 2, 3, [0, 0, 9, 0]),
        ({"channels": 4, "lines": 3, "columns": 3, "width": 64}, (1, 2), (1, 0), [0, 0, 4, 0]),
        ({"channels": 4, "lines": 2, "columns": 5, "height": 30}, 3, 2, [0, 2]),  # some left over
    ],
)
def test_a_first_layer_is_few_kernels(sizes, stride, padding, dots):
    """The image with zeros around it, sums of the window, the layer, and, as it is made in parts,
    its result the way PyTorch lays it."""
    given, function = images(**sizes), partial(first_layer, stride=stride, padding=padding)
    report = explain(function, *given)
    assert not report.library_calls
    assert [kernel.ops.count("dot") for kernel in report.kernels] == dots
    torch._dynamo.reset()
    found = torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    assert difference(found, function(*(each.double() for each in given))) < 1e-6
    assert found.stride() == function(*given).stride()


def test_lines_that_are_not_worth_it_are_multiplied_one_by_one():
    """Of a window of two lines less is spared than the sums take."""

    def products(lines, columns, stride):
        builder = Builder()
        sizes = (2, 3, 40, 40), (64, 3, lines, columns)
        x, w = (
            builder.input(n, k, s, DType.F32, (1,) * 4) for k, (n, s) in enumerate(zip("xw", sizes))
        )
        made = few_channels.DirectConvolution(builder, x, w, None, stride, (0, 0))
        inlined = made.result(0)
        return len(inlined.products), inlined.fewer > 0

    assert products(2, 4, (1, 1)) == (2, False)
    assert products(3, 3, (1, 1)) == (4, True)
    assert products(7, 7, (2, 2)) == (9, True)
    assert products(11, 11, (4, 4)) == (15, True)


@pytest.mark.usefixtures("kernels_multiply")
def test_gradients_are_the_librarys():
    given = [each.requires_grad_() for each in images()]
    assert_trains_as_eager(partial(first_layer, stride=2, padding=3), given)


@pytest.mark.usefixtures("kernels_multiply")
def test_the_lines_of_a_window_are_added_up_in_registers():
    """Nine products, five tiles: what counts alike in both lines of a tile."""
    function = partial(first_layer, stride=2, padding=3)
    ((_, plan),) = plans_of(function, images(), generic_cpu(2, 16))
    kernels = [block_matmuls(step.stitched.kernel, 2) for step in plan.kernels]
    contracts = [s for kernel in kernels for s in statements(kernel) if isinstance(s, Contract)]
    loops = [s for kernel in kernels for s in statements(kernel) if isinstance(s, Loop)]
    tiles = [tile for tile in map(TileMatmul.of, loops) if tile is not None]
    assert len(contracts) == 9
    assert sorted(len(tile.operands) for tile in tiles) == [1, 2, 2, 2, 2]


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(("width", "has_lines"), [(64, True), (41, True), (74, False)])
def test_windows_are_cut_from_one_line(width: int, has_lines: bool) -> None:
    """A sum of lines is made once for all windows of a block, if blocks come out even."""
    given, function = images(width=width, height=38), partial(first_layer, stride=2, padding=3)
    ((_, plan),) = plans_of(function, given, generic_cpu(2, 16))
    kernels = [block_matmuls(step.stitched.kernel, 2) for step in plan.kernels]
    found = {b.size for kernel in kernels for b in kernel.buffers if "a line" in b.why}
    windows = -(-width // 2)
    block = max(n for n in range(1, 33) if windows % n == 0)
    assert found == ({21 + 6 * (block - 1)} if has_lines else set())
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="hemstitch", options=OPTIONS)(*given)
    assert difference(compiled, function(*(each.double() for each in given))) < 1e-6


@pytest.mark.usefixtures("kernels_multiply")
def test_frozen_weights_may_change():
    layer = nn.Conv2d(3, 64, 7, stride=2, padding=3).eval()
    x = torch.randn(2, 3, 40, 40).to(memory_format=torch.channels_last)
    with torch.no_grad():
        compiled = torch.compile(
            layer, backend="hemstitch", options={"strict": True, "freeze": True}
        )
        for _ in range(2):
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
            layer.weight.mul_(-2)
        report = explain(layer, x, options={"freeze": True})
        assert not report.library_calls
        assert [kernel.ops.count("dot") for kernel in report.kernels] == [0, 9]  # no sums


@pytest.mark.usefixtures("kernels_multiply")
@pytest.mark.parametrize(
    ("why", "function", "sizes"),
    [
        ("channels", lambda x, w, b: F.conv2d(x, w, b), {"channels": 5}),
        ("few results", lambda x, w, b: F.conv2d(x, w, b), {"features": 31}),
        ("a narrow image", lambda x, w, b: F.conv2d(x, w, b), {"width": 13}),
        ("short lines", lambda x, w, b: F.conv2d(x, w, b), {"columns": 2}),
        ("apart", lambda x, w, b: F.conv2d(x, w, b, dilation=2), {}),
        ("groups", lambda x, w, b: F.conv2d(x.repeat(1, 2, 1, 1), w, b, groups=2), {}),
        ("half types", lambda x, w, b: F.conv2d(x.bfloat16(), w.bfloat16(), b.bfloat16()), {}),
    ],
)
def test_others_stay_with_the_library(why, function, sizes):
    assert explain(function, *images(**sizes)).library_calls, why
