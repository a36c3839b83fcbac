"""What PyTorch's trace is broken up into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hemstitch.backend import compile_with
from hemstitch.ir.graph import toposort
from hemstitch.ir.ops import is_call
from hemstitch.options import Options
from hemstitch.report.explain import explain


def calls_of(function: Any, *arguments: Tensor) -> int:
    """Library calls, forward and backward; the result and the gradients are eager's."""
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Any:
        return compile_with(
            gm, inputs, Options(cache=False, strict=True), lambda *each: seen.append(each[1])
        )

    torch._dynamo.reset()
    expected, found = function(*arguments), torch.compile(function, backend=backend)(*arguments)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad(x, arguments, weights) for x in (expected, found)]
    torch.testing.assert_close(*gradients)
    return sum(is_call(n.op) for c in seen for n in toposort(c.graph.roots))


def test_all_of_a_tensor_in_its_order_is_a_view() -> None:
    x = torch.randn(8, 20, 1, 1, requires_grad=True)
    channels_last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    assert calls_of(lambda x: torch.as_strided(x, (8, 20), (20, 1)).exp(), x) == 0
    assert calls_of(lambda x: (x * 2).mean((2, 3)).flatten(1).exp(), channels_last) == 0


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((8, 19), (20, 1), 0), ((20, 8), (1, 20), 0), ((4, 20), (20, 1), 5)],
)
def test_other_windows_are_the_librarys(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    x = torch.randn(8, 20, requires_grad=True)
    assert calls_of(lambda x: torch.as_strided(x * 1, size, stride, offset).exp(), x) > 0


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_padding_that_is_called_valid(rank: int) -> None:
    """PyTorch then has one number for all axes."""
    convolve = getattr(torch.nn.functional, f"conv{rank}d")
    image = torch.randn(2, 3, *(16,) * rank, requires_grad=True)
    weight = (torch.randn(8, 3, *(4,) * rank) / 8).requires_grad_()
    for stride in (1, 4):
        calls_of(lambda x, w, s=stride: convolve(x, w, stride=s, padding="valid"), image, weight)


def test_constants_that_a_decomposition_makes() -> None:
    """As the grid of one row, which torch.tensor makes: with gradients that fell back."""
    options = {"strict": True, "cache": False}
    torch._dynamo.reset()

    def program(x: Tensor, theta: Tensor) -> Tensor:
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False) * x.mean())

    x, theta = torch.randn(2, 3, 1, 4, requires_grad=True), torch.randn(2, 2, 3)
    compiled = torch.compile(program, backend="hemstitch", options=options)
    values = [compiled(x, theta), program(x, theta)]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x) for y in values))


def test_what_moves_nothing_is_no_view() -> None:
    torch._dynamo.reset()

    def program(x: Tensor) -> list[Tensor]:
        y = x * 2
        return [y, F.channel_shuffle(y, 2), y.roll(0, 1), y.roll(2, 1)]

    results = torch.compile(program, backend="hemstitch")(torch.randn(2, 2, 3, 4))
    assert len({result.data_ptr() for result in results}) == len(results)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.fft.fft2(x, s=(3, 5)).abs(),
        lambda x: x.to(torch.complex64)[2:, 1].abs(),
        lambda x: x.to(torch.complex64).unfold(1, 3, 2).abs(),
        lambda x: x.to(torch.complex64).diagonal(1).abs(),
    ],
)
def test_gradients_of_parts_of_complex_tensors_copy_nothing(program: Any) -> None:
    x = torch.randn(6, 8, requires_grad=True)
    report = explain(program, x)
    assert not [name for name in report.library_calls if "_scatter" in name or "zeros" in name]
    compiled = torch.compile(program, backend="hemstitch", options={"strict": True})
    ours, eager = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, program))
    torch.testing.assert_close(ours, eager)
