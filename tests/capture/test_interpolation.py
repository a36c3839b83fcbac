"""Interpolation, whose gradient is another interpolation: eager's values, layouts and gradients,
and no sum by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.compiled import watched
from tests.effort import some

SIZES: list[dict[str, Any]] = [
    {"scale_factor": 2},
    {"scale_factor": (1.7, 0.3)},
    {"size": (5, 31)},
    {"size": (1, 1)},
    {"scale_factor": 9},  # more taps than are read one by one
    *some(
        [],
        [
            {"scale_factor": 0.5},
            {"scale_factor": 1.0},
            {"scale_factor": 1.7, "recompute_scale_factor": True},
            {"size": (64, 3)},
            {"size": (9, 13)},
        ],
    ),
]
MODES: list[tuple[str, bool | None, bool]] = [
    ("nearest", None, False),
    ("nearest-exact", None, True),
    ("bilinear", False, True),
    ("bilinear", True, False),
    ("bicubic", False, False),
    *some(
        [],
        [
            ("nearest", None, True),
            ("nearest-exact", None, False),
            ("bilinear", False, False),
            ("bilinear", True, True),
            ("bicubic", False, True),
            ("bicubic", True, False),
        ],
    ),
]


def _images(dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    x = torch.randn(2, 3, 9, 13).to(dtype)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return x.contiguous(memory_format=layout).requires_grad_()


def _sizes_of(mode: str, corners: bool | None) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    return lambda x: [F.interpolate(x, mode=mode, align_corners=corners, **s) for s in SIZES]


def _assert_as_eager(
    program: Callable[[torch.Tensor], Sequence[torch.Tensor]], x: torch.Tensor, bound: float
) -> None:
    """Values and gradients as far from float64 as eager's, by `bound` of the largest."""
    compiled, report = watched(program)
    wide = x.detach().double().requires_grad_()
    results, expected, exact = compiled(x), program(x), program(wide)
    seeds = [torch.randn_like(result) for result in expected]
    gradients = (
        torch.autograd.grad(values, source, [seed.to(values[0].dtype) for seed in seeds])
        for values, source in ((results, x), (expected, x), (exact, wide))
    )
    ours, eager, true = ([*v, g] for v, (g,) in zip((results, expected, exact), gradients))
    for value, reference, truth in zip(ours, eager, true, strict=True):
        assert (value.shape, value.dtype) == (reference.shape, reference.dtype)
        error = (value.detach().double() - truth.detach()).abs().max()
        assert float(error) <= bound * max(1.0, float(truth.detach().abs().max()))
    for value, reference in zip(results, expected, strict=True):
        layout = {"memory_format": torch.channels_last}
        assert value.is_contiguous(**layout) == reference.is_contiguous(**layout)
    assert "index_put" not in str(report), "the gradient adds up by index"


@pytest.mark.parametrize("mode, corners, channels_last", MODES)
def test_values_and_gradients(mode: str, corners: bool | None, channels_last: bool) -> None:
    # Nearest chooses in single precision; what is rounded twice may choose another neighbour.
    _assert_as_eager(_sizes_of(mode, corners), _images(torch.float32, channels_last), 1e-5)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-13), (torch.bfloat16, 2e-2)])
def test_other_types(dtype: torch.dtype, bound: float) -> None:
    program = _sizes_of("bilinear", True)
    _assert_as_eager(program, _images(dtype, channels_last=False), bound)


@pytest.mark.parametrize(
    "shape, mode", [((2, 3, 7), "linear"), ((1, 2, 3, 4, 5), "trilinear"), ((2, 3, 7), "nearest")]
)
def test_one_and_three_axes(shape: tuple[int, ...], mode: str) -> None:
    x = torch.randn(shape, requires_grad=True)
    _assert_as_eager(lambda x: [F.interpolate(x, scale_factor=3, mode=mode)], x, 1e-5)


def test_behind_a_convolution_it_is_one_kernel_in_each_pass() -> None:
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(convolution(x).relu(), scale_factor=2, mode="bilinear").sigmoid()

    compiled, report = watched(program)
    x = torch.randn(2, 3, 12, 12, requires_grad=True)
    compiled(x).sum().backward()
    ours, x.grad = x.grad, None
    program(x).sum().backward()
    torch.testing.assert_close(ours, x.grad)
    assert "index_put" not in str(report)


KEPT: list[dict[str, Any]] = [{"size": (7, 14)}, {"size": (5, 7)}, {"scale_factor": 1.15}]
WAYS = [("nearest", None), ("nearest-exact", None)]
WAYS += [(mode, corners) for mode in ("bilinear", "bicubic") for corners in (False, True)]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode, corners", WAYS)
def test_infinities_reach_as_far_as_eagers(
    mode: str, corners: bool | None, channels_last: bool
) -> None:
    """Weights of zero make no number of them, in the gradient too; what is no tap does not. An axis
    that keeps its size is copied, or is not, as ATen has it for each mode."""
    sizes = [*SIZES[1:3], *KEPT]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.interpolate(x, mode=mode, align_corners=corners, **size) for size in sizes]

    compiled, _ = watched(program)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for place in (0, 8, 34):  # of an image of five rows
        x = torch.randn(2, 3, 5, 7).contiguous(memory_format=layout)
        x.permute(2, 3, 0, 1)[divmod(place, 7)] = float("inf")
        x.requires_grad_()
        results, expected = compiled(x), program(x)
        torch.testing.assert_close(results, expected, equal_nan=True)
        for value, reference in zip(results, expected, strict=True):
            seed = torch.randn_like(reference)
            seed.permute(2, 3, 0, 1)[place % seed.shape[2], -1 - place % seed.shape[3]] = float(
                "inf"
            )
            gradients = (
                torch.autograd.grad(y, x, seed, retain_graph=True)[0] for y in (value, reference)
            )
            torch.testing.assert_close(*gradients, equal_nan=True)


def test_a_zero_keeps_its_sign_where_nothing_is_added_to_it() -> None:
    x = torch.tensor([-0.0, 1.0, 0.0, -0.0, -2.0, -0.0]).repeat(1, 2, 3, 1)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        modes = ("nearest", "nearest-exact")
        sizes = ((3, 5), (5, 4), (7, 9))
        return [F.interpolate(x, size=size, mode=mode) for size in sizes for mode in modes]

    compiled, _ = watched(program)
    for value, reference in zip(compiled(x), program(x), strict=True):
        assert torch.equal(value, reference)
        assert torch.equal(value.signbit(), reference.signbit())


def test_a_gradient_of_the_gradient() -> None:
    def program(x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        y = F.interpolate(x, scale_factor=2, mode="bilinear") ** 3
        (gradient,) = torch.autograd.grad(y, x, seed, create_graph=True)
        return gradient

    x, seed = torch.randn(1, 1, 4, 4, requires_grad=True), torch.randn(1, 1, 8, 8)
    compiled, _ = watched(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") ** 3)
    (ours,) = torch.autograd.grad(compiled(x), x, seed)
    torch.testing.assert_close(ours, program(x, seed).detach())


def test_sizes_that_only_the_call_knows() -> None:
    compiled, _ = watched(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    for size in (5, 8, 11):
        x = torch.randn(2, 3, size, size + 1)
        torch._dynamo.mark_dynamic(x, 2)
        torch._dynamo.mark_dynamic(x, 3)
        expected = F.interpolate(x, scale_factor=2, mode="bilinear")
        torch.testing.assert_close(compiled(x), expected)
