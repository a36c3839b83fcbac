"""Zeros have eager's signs where IEEE 754 says which; docs/user/correctness.md has the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.compiled import watched

ZERO = -0.0  # negative zeros in all of an operand
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ours.signbit(), theirs.signbit())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_begin_with_zero(dtype: torch.dtype) -> None:
    """Of one element too."""

    def program(*operands: Tensor) -> list[Tensor]:
        sums: list[Tensor] = []
        for x in operands:
            for axis in range(x.dim()):
                sums += [x.sum(axis), x.mean(axis, keepdim=True), x.nansum(axis), x.cumsum(axis)]
            sums.append(x.sum())
        return sums

    shapes = ((1,), (1, 5), (5, 1), (3, 1, 4), (2, 3), (40, 33))
    operands = [torch.full(shape, ZERO, dtype=dtype) for shape in shapes]
    compiled, _ = watched(program)
    for ours, theirs in zip(compiled(*operands), program(*operands), strict=True):
        _same(ours, theirs)


def test_what_is_added_by_index() -> None:
    """To zeros of a sign, or none of it."""

    def program(x: Tensor, index: Tensor, values: Tensor) -> list[Tensor]:
        rows = (2, 4)
        return [
            x.scatter_add(0, index, values),
            x.view(rows).scatter_add(1, index.view(rows), values.view(rows)),
            torch.zeros_like(x).scatter_add(0, index, values),
        ]

    x = torch.full((8,), ZERO)
    index = torch.tensor([0, 0, 1, 3, 3, 2, 2, 0])
    values = torch.tensor([ZERO, ZERO, ZERO, 1.0, -1.0, ZERO, ZERO, ZERO])
    compiled, _ = watched(program)
    for ours, theirs in zip(compiled(x, index, values), program(x, index, values), strict=True):
        _same(ours, theirs)


GRADIENTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.adaptive_max_pool2d(x, 2),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    lambda x: F.interpolate(x, size=(3, 5)),
    lambda x: x[:1].expand(3, -1, -1, -1),
    lambda x: x[:, :1] + torch.ones(1, 1, 4, 4),
    lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"),
    lambda x: F.pad(x[0], (1, 2), mode="replicate"),
    lambda x: x.unfold(2, 2, 1),
    lambda x: x.unfold(3, 2, 2),
    lambda x: F.unfold(x, 2),
    lambda x: F.avg_pool2d(x, 2),
    lambda x: F.adaptive_avg_pool2d(x, 2),
    lambda x: x.diff(dim=1),
    lambda x: x[:, :, 1:].bfloat16() - x[:, :, :3].bfloat16(),
)


def test_gradients_are_added_to_zeros() -> None:
    def program(*operands: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(GRADIENTS, operands, strict=True)]

    compiled, _ = watched(program)
    gradients = []
    for run in (compiled, program):
        x = torch.arange(32.0).view(1, 2, 4, 4).sin()
        operands = [x.clone().requires_grad_() for _ in GRADIENTS]
        results = run(*operands)
        gradients.append([])
        for zero in (ZERO, 0.0):
            directions = [torch.full_like(y, zero) for y in results]
            of_zeros = torch.autograd.grad(results, operands, directions, retain_graph=True)
            gradients[-1].extend(of_zeros)
    for ours, theirs in zip(*gradients, strict=True):
        _same(ours, theirs)


def test_of_two_constants_the_first() -> None:
    def program(x: Tensor) -> list[Tensor]:
        zeros = torch.zeros_like(x)
        return [
            zeros.clamp(ZERO, 1.0),
            (zeros * ZERO).clamp(-1.0, 0.0),
            zeros.byte().clamp(ZERO, 1.0),
        ]

    compiled, _ = watched(program)
    for ours, theirs in zip(compiled(torch.ones(5)), program(torch.ones(5)), strict=True):
        _same(ours, theirs)
