"""Operations whose results eager lays out otherwise than PyTorch's fake tensors say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

PAIRED = (
    *(torch.floor_divide, torch.copysign, torch.xlogy, torch.special.xlog1py, torch.logaddexp),
    *(torch.logaddexp2, torch.logical_and, torch.logical_or, torch.logical_xor, torch.heaviside),
    *(torch.ldexp, torch.maximum),
)


def _pairs(x: Tensor, permuted: Tensor, column: Tensor, number: Tensor) -> list[Tensor]:
    pairs = (x, permuted), (permuted, x), (number, permuted), (permuted, column)
    return [operation(*pairs[n % 4]) for n, operation in enumerate(PAIRED)] + [
        operation(*pairs[(n + 2) % 4]) for n, operation in enumerate(PAIRED)
    ]


def _alone(x: Tensor, permuted: Tensor, column: Tensor, number: Tensor) -> list[Tensor]:
    return [
        0.5**permuted,
        F.logsigmoid(permuted),
        torch.isin(permuted, 1.0),
        torch.isin(permuted, x),
        torch.div(permuted, number, rounding_mode="floor"),
        F.batch_norm(permuted, column[:, 0, 0], x[0, :, 0].abs()),
        torch.lcm(number.long(), permuted > 1),
        torch.gcd((permuted * 9).long(), x.long()),
        (0.5**permuted)[:, 1:],
        permuted.index_fill(1, torch.tensor([2, 0]), -1.0),
        permuted[:, ::2].index_fill(0, torch.tensor([1, 1]), number),
    ]


def _indexed(x: Tensor, permuted: Tensor, column: Tensor, number: Tensor) -> list[Tensor]:
    """Axes of size 1 have strides, and the order of the other axes may hang on these."""
    images, places = permuted[None], torch.tensor([2, 0, 1, 1])
    flat = x.as_strided((4, 1, 5), (1, 1, 4))
    return [
        *(images[:, :, places], images[:, places], images[..., places, :][places[1:2]]),
        *(flat[:, places[1:2]], flat[places, :, places], flat[:, places[1:2, None], places[None]]),
        x.as_strided((1, 1, 5, 4), (2, 64, 1, 16))[:, (places * 0).view(2, 2).t()] * 2,
        *(permuted[permuted[:, 0, 0] > 0], x[:, None, places]),
    ]


@pytest.mark.parametrize("dynamic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize("program", [_pairs, _alone, _indexed], ids=lambda each: each.__name__)
def test_strides_are_eagers(program: Any, dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.linspace(0.5, 2, 4 * 4 * 5).view(4, 4, 5)
    permuted = x.flip(0).permute(2, 1, 0).contiguous().permute(2, 1, 0)
    arguments = x, permuted, x.permute(0, 2, 1)[:, :1].contiguous().permute(0, 2, 1), x[0, 0, 1]
    compiled = torch.compile(program, backend="hemstitch", dynamic=dynamic)
    expected, found = program(*arguments), compiled(*arguments)
    torch.testing.assert_close(found, expected)
    assert [y.stride() for y in found] == [y.stride() for y in expected]


def _written(x: Tensor, other: Tensor, places: Tensor) -> list[Tensor]:
    y = x * 2
    rows, values = places[0], other[:, places[0]]
    x.masked_fill_(other > 1, 0.5)
    y.index_copy_(1, rows, values)
    z = y.scatter_add_(1, places, other) + 1
    w = y.cumsum_(1) * 3
    x[:, 1:].tril_()
    whole = x[..., ::2].clone().t().addmm_(values, values.t()[:, :4].clone())
    return [x * 3, y + 1, z, w, whole * 2]


@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_written_to_keeps_its_layout(gradients: bool) -> None:
    torch._dynamo.reset()
    outcomes = []
    for function in (_written, torch.compile(_written, backend="hemstitch", dynamic=gradients)):
        leaf = torch.linspace(0.5, 2, 64).requires_grad_(gradients)
        x = (leaf * 1).view(8, 8).t()[:4]
        other = torch.linspace(2, 0, 32).view(4, 8)
        places = (torch.arange(32).view(4, 8) * 3) % 8
        results = function(x, other, places)
        if gradients:
            torch.stack([y.sum() for y in results]).sum().backward()
        outcomes.append(([*results, x], [y.stride() for y in results], leaf.grad))
    expected, found = outcomes
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[2], expected[2])
    assert found[1] == expected[1]
