"""Rolling, padding by what is there, and windows: slices in place of indices, with their
gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.compiled import watched
from tests.effort import some

Program = Callable[[torch.Tensor], torch.Tensor]
WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (2, 3), "stride": 2},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": (3, 1), "dilation": (1, 2), "stride": (2, 3), "padding": (1, 0)},
]


def _rolled(x: torch.Tensor, shifts: tuple[int, ...], dims: tuple[int, ...]) -> torch.Tensor:
    return x.roll(shifts, dims)


def _folded(x: torch.Tensor, **windows: Any) -> torch.Tensor:
    return F.fold(F.unfold(x, **windows) * 2, x.shape[2:], **windows)


def _windows(x: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    return x.unfold(dimension, size, step) * 2


PROGRAMS: dict[str, list[Program]] = {
    "roll": [
        partial(_rolled, shifts=shifts, dims=dims)
        for shifts, dims in [((3, 5), (2, 3)), ((-1,), (1,)), ((7, -9, 100), (0, 2, 3)), ((2,), ())]
    ],
    **{
        mode: [
            partial(F.pad, pad=pad, mode=mode)
            for pad in [(2, 2, 2, 2), (1, 0, 0, 3), (-1, 2, 3, -2), (5, 5, 6, 6)]
        ]
        for mode in ("reflect", "replicate", "circular")
    },
    "wide": [partial(F.pad, pad=(15, 5, 6, 16), mode="replicate")],
    "windows": [
        partial(_windows, dimension=dimension, size=size, step=step)
        for dimension, size, step in [(2, 3, 1), (-1, 5, 2), (3, 2, 5), (0, 1, 1), (1, 3, 4)]
    ],
    "unfold": [partial(F.unfold, **windows) for windows in WINDOWS],
    "fold": [partial(_folded, **windows) for windows in WINDOWS],
}


def steps(x: torch.Tensor) -> list[int]:
    """Strides of the axes that have some."""
    return [stride for size, stride in zip(x.shape, x.stride()) if size > 1]


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("channels_last", some([True], [False]))
def test_values_and_gradients(kind: str, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(2, 3, 9, 12).contiguous(memory_format=layout).requires_grad_()
    compiled, report = watched(lambda x: [program(x) for program in PROGRAMS[kind]])
    results, expected = compiled(x), [program(x) for program in PROGRAMS[kind]]
    seeds = [torch.randn_like(result) for result in expected]
    (ours,), (eager,) = (torch.autograd.grad(v, x, seeds) for v in (results, expected))
    for value, reference in zip([*results, ours], [*expected, eager], strict=True):
        torch.testing.assert_close(value, reference)
        assert steps(value) == steps(reference)
    assert "index_put" not in str(report) and "masked_index" not in str(report)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (1, 2, 4, 5, 6)])
def test_padding_of_other_ranks(shape: tuple[int, ...]) -> None:
    pad = (1, 2) if len(shape) < 5 else (1, 2, 0, 3, 2, 1)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.pad(x, pad, mode=mode) for mode in ("reflect", "replicate")]

    compiled, _ = watched(program)
    x = torch.randn(shape, requires_grad=True)
    results, expected = compiled(x), program(x)
    seeds = [torch.randn_like(result) for result in expected]
    (ours,), (eager,) = (torch.autograd.grad(v, x, seeds) for v in (results, expected))
    for value, reference in zip([*results, ours], [*expected, eager], strict=True):
        torch.testing.assert_close(value, reference)


def test_sizes_that_only_the_call_knows() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.roll(3, 1), F.pad(x[None], (2, 1), mode="reflect"), x.roll(5)]

    compiled, _ = watched(program)
    for size in (5, 8, 11):
        x = torch.randn(4, size)
        torch._dynamo.mark_dynamic(x, 1)
        for value, reference in zip(compiled(x), program(x), strict=True):
            assert torch.equal(value, reference)


@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((5, 5), {}),
        ((4, 5, 6), {"offset": -3}),
        ((5, 4, 6), {"offset": 3, "dim1": 2, "dim2": 0}),
        ((2, 7, 3), {"offset": 1, "dim1": -1, "dim2": 1}),
        ((3, 1), {"offset": -2}),
    ],
)
def test_diagonals(shape: tuple[int, ...], where: dict[str, int]) -> None:
    """Written, and as the gradient of one that is read: by comparing places, without a call."""
    x = torch.randn(shape, requires_grad=True)
    source = torch.randn_like(x.diagonal(**where)).requires_grad_()

    def program(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        written = torch.diagonal_scatter(x * 2, source, **where)
        return written * torch.diagonal_copy(x, **where).sum()

    compiled, report = watched(program)
    results = compiled(x, source), program(x, source)
    torch.testing.assert_close(*results)
    ours, eager = (torch.autograd.grad(v.square().sum(), (x, source)) for v in results)
    torch.testing.assert_close(ours, eager)
    assert {*report.library_calls} == {"aten.diagonal.default"}  # a view
