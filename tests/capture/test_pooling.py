"""Maxima over windows: values, places and gradients are PyTorch's; what stands before is fused."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch import explain
from tests.effort import some

SHAPES = ((2, 3, 9, 10), (3, 8, 8), (1, 1, 5, 5))
WINDOWS: dict[str, dict[str, Any]] = {
    "tiles": {"kernel_size": 2},
    "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1},
    "beyond the edge": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "beyond the edge, apart": {"kernel_size": 3, "stride": 3, "ceil_mode": True},
    "no squares": {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 1)},
    "apart": {"kernel_size": 2, "stride": 2, "dilation": 2},
}


def images(shape: tuple[int, ...], channels_last: bool) -> Tensor:
    """With NaN and whole windows of -inf, and no two equal."""
    x = torch.randn(shape)
    x = torch.where(torch.rand(shape) < 0.3, -math.inf, x)
    x[..., :3, :3] = -math.inf
    x = torch.where(torch.rand(shape) < 0.05, math.nan, x)
    is_image = channels_last and x.dim() == 4
    return x.contiguous(memory_format=torch.channels_last) if is_image else x


@pytest.mark.parametrize("name", WINDOWS)
def test_values_and_places(name: str) -> None:
    def program(x: Tensor) -> Any:
        return F.max_pool2d(x, **WINDOWS[name], return_indices=True)

    for shape, channels_last in product(SHAPES, (False, True)):
        torch._dynamo.reset()
        x = images(shape, channels_last)
        found = torch.compile(program, backend="hemstitch", options={"strict": True})(x)
        for ours, theirs in zip(found, program(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
            assert ours.stride() == theirs.stride()


def gradients(program: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Ours and PyTorch's."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    found, expected = (
        torch.autograd.grad(function(x).sum(), x)[0] for function in (compiled, program)
    )
    return found, expected


@pytest.mark.parametrize(
    ("channels_last", "height"), some([(False, 9), (True, 8)], [(False, 8), (True, 9)])
)
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients(name: str, channels_last: bool, height: int) -> None:
    def program(x: Tensor) -> Tensor:
        return F.max_pool2d(torch.sin(x), **WINDOWS[name]).square()

    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(2, 3, height, 10).contiguous(memory_format=layout).requires_grad_()
    torch.testing.assert_close(*gradients(program, x))


@pytest.mark.parametrize(
    "pool",
    [lambda x: F.max_pool2d(x, (2, 5)), lambda x: F.adaptive_max_pool2d(x, (4, 5))],
    ids=["tiles", "adaptive"],
)
def test_gradients_of_tiles_are_in_a_kernel(pool: Callable[[Tensor], Tensor]) -> None:
    """The first of several equal elements has it, or a NaN."""

    def program(x: Tensor) -> Tensor:
        return pool(torch.relu(x)) * 3

    x = torch.randn(2, 3, 8, 10)
    x[:, :, 3:5, 2:7] = 1.0
    x[0, 0, 2, 2] = math.nan
    x.requires_grad_()
    assert not explain(program, x, backward=True).library_calls
    torch.testing.assert_close(*gradients(program, x), equal_nan=True)


def test_places_in_tiles_are_told_apart_by_a_few_bits() -> None:
    x = torch.randn(4, 8, 32, 32, requires_grad=True)
    report = explain(lambda x: F.max_pool2d(x.exp(), 2), x, backward=True)
    (kernel,) = [each for each in report.kernels if each.graph == "backward"]
    assert sum(kernel.reads.values()) == x.nbytes * 5 // 4
    assert "eq.i8" in kernel.ir and ".i64" not in kernel.ir.replace("cast.i64", "")


def test_places_that_forward_did_not_find_are_taken_as_given() -> None:
    x, grad = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 4, 4)
    row, column = torch.randint(2, (2, 2, 3, 4, 4))
    places = (2 * torch.arange(4)[:, None] + row) * 8 + 2 * torch.arange(4) + column
    backward = torch.ops.aten.max_pool2d_with_indices_backward.default

    def program(grad: Tensor, x: Tensor, places: Tensor) -> Tensor:
        result: Tensor = backward(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)
        return result

    found = torch.compile(program, backend="hemstitch")(grad, x, places)
    torch.testing.assert_close(found, program(grad, x, places), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(3, 2), 1, (9, 10)])
def test_one_window_for_each_place(dtype: torch.dtype, size: Any) -> None:
    def program(x: Tensor) -> Any:
        return F.adaptive_max_pool2d(x, size, return_indices=True)

    torch._dynamo.reset()
    x = torch.randn(2, 3, 9, 10).to(dtype)
    x[1].view(-1)[::4] = torch.nan
    found = torch.compile(program, backend="hemstitch", options={"strict": True})(x)
    torch.testing.assert_close(found, program(x), equal_nan=True)


def test_what_stands_before_is_in_the_same_kernel() -> None:
    """Places that nobody asks for are not computed."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool2d(torch.relu(x), 3, 2, 1), F.adaptive_max_pool1d(x[0].sin(), 4)

    report = explain(program, torch.randn(2, 8, 16, 16))
    assert not report.library_calls
    (first,) = (kernel for kernel in report.kernels if "maximum" in kernel.ops)
    assert not {"where", "gt", "argmax"}.intersection(first.ops)


def test_windows_that_differ_and_whole_numbers_are_the_librarys() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.adaptive_max_pool2d(x, (4, 4)), F.max_pool2d(x.long(), 2)

    report = explain(program, torch.randn(2, 3, 9, 10))
    names = sorted(name.split(".")[1] for name in report.library_calls)
    assert names == ["adaptive_max_pool2d", "max_pool2d_with_indices"]


def test_sizes_known_only_to_the_call() -> None:
    torch._dynamo.reset()

    def program(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, 1)

    compiled = torch.compile(program, backend="hemstitch", dynamic=True, options={"strict": True})
    for side in (8, 11, 14):
        x = torch.randn(2, 3, side, side + 1)
        torch.testing.assert_close(compiled(x), program(x))


def test_means_of_negative_zeros() -> None:
    """Eager begins at 0, whatever it adds."""

    def program(x: Tensor) -> list[Tensor]:
        return [F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 2)]

    torch._dynamo.reset()
    x = torch.full((2, 3, 8, 8), -0.0)
    x[0, 0, :3] = torch.randn(3, 8)
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    for result, eager in zip(compiled(x), program(x)):
        torch.testing.assert_close(result, eager)
        assert torch.equal(result.signbit(), eager.signbit())
