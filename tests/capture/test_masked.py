"""Writes of one value to what a mask chooses, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.compiled import watched

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "every other": lambda x: x[:, ::2],
    "part": lambda x: x[1:4, 1:5],
}


@pytest.mark.parametrize(
    "dtype, shape", [(torch.float32, (1, 5)), (torch.float64, ()), (torch.bfloat16, (5,))]
)
@pytest.mark.parametrize("view", VIEWS)
def test_as_eager(view: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def program(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        written = x * 2
        VIEWS[view](written)[mask] = value
        return written.tanh()

    compiled, report = watched(program)
    lead = VIEWS[view](torch.empty(6, 8, 5)).shape[:2]
    masks = [torch.rand(lead) < 0.4, torch.zeros(lead) > 1, torch.ones(lead) > 0]
    for mask in masks:
        x = torch.randn(6, 8, 5, dtype=dtype)
        x[0, :2, :3] = torch.tensor([float("nan"), float("inf"), -0.0], dtype=dtype)
        x.requires_grad_()
        value = torch.randn(shape, dtype=dtype, requires_grad=True)
        ours, eager = (f(x, mask, value) for f in (compiled, program))
        seed = torch.randn_like(eager)
        torch.testing.assert_close(ours, eager, equal_nan=True)
        pairs = (torch.autograd.grad(y, (x, value), seed) for y in (ours, eager))
        for gradient, expected in zip(*pairs):
            torch.testing.assert_close(gradient, expected, equal_nan=True)
            assert gradient.stride() == expected.stride()
    # A slice with a step is written by the library.
    assert set(report.library_calls) <= {"aten.slice_scatter.default"}


def _by_index(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    x[(mask,)] = value
    return x.sum()


def _by_call(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return x.index_put_((mask,), value).sum()


@pytest.mark.parametrize("program", [_by_index, _by_call])
def test_an_argument_is_written(program: Callable[..., Tensor]) -> None:

    compiled, _ = watched(program)
    x, value = torch.randn(7, 3), torch.randn(3, requires_grad=True)
    mask = torch.rand(7) < 0.5
    x.neg_()
    ours, eager = x.clone(), x.clone()
    compiled(ours, mask, value).backward()
    gradient, value.grad = value.grad, None
    program(eager, mask, value).backward()
    assert torch.equal(ours, eager)
    assert gradient is not None and value.grad is not None and torch.equal(gradient, value.grad)


@pytest.mark.parametrize("size", [2, 3])
def test_a_value_for_each_that_is_chosen(size: int) -> None:
    """What has a row for each is no choice between two: PyTorch says what does not fit."""

    def program(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        x = x * 1
        x[mask] = value
        return x

    mask = torch.tensor([True, False, True])
    x, value = torch.randn(3, 4), torch.randn(size, 4)
    if size == 2:
        compiled, _ = watched(program)
        assert torch.equal(compiled(x, mask, value), program(x, mask, value))
    else:
        with pytest.raises(RuntimeError, match="shape mismatch"):
            torch.compile(program, backend="hemstitch")(x, mask, value)
