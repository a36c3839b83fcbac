"""Rows whose lanes are several axes, and what rows keep in memory: Triton kernels, emulated with
all checks, beside eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.printed.test_printed_text import text_of

pytest.importorskip("triton")
OPTIONS = {"target": "interpret", "strict": True, "check": True}
BARRIER = "tl.debug_barrier()"


def rotary(x: Tensor, weight: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads of a row that a norm goes over as a whole."""
    row = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    heads = row.view(*row.shape[:-1], -1, cosine.shape[-1]).transpose(1, 2)
    left, right = heads.chunk(2, -1)
    return heads * cosine + torch.cat((-right, left), -1) * sine


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 3, weight, bias))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


def rotary_arguments(batch: int, places: int, heads: int, width: int) -> list[Tensor]:
    x = torch.randn(batch, places, heads * width)
    return [x, torch.randn(heads * width), *torch.randn(2, places, width)]


def images(*shape: int) -> list[Tensor]:
    return [torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1])]


CASES = {
    "rotary": (rotary, rotary_arguments(3, 5, 4, 8)),
    "rotary, odd": (rotary, rotary_arguments(2, 7, 3, 6)),
    "group norm": (group_norm, images(5, 6, 3, 7)),
    "group norm, long": (group_norm, images(2, 6, 40, 33)),
    "batch norm": (batch_norm, images(9, 4, 5, 3)),
}


@pytest.mark.parametrize(("function", "arguments"), CASES.values(), ids=CASES)
def test_forward_and_backward_are_eagers(function, arguments):
    torch._dynamo.reset()
    inputs = [argument.clone().requires_grad_() for argument in arguments]
    result = torch.compile(function, backend="hemstitch", options=OPTIONS)(*inputs)
    gradient = torch.randn_like(result)
    computed = [result, *torch.autograd.grad(result, inputs, gradient)]
    wide = [argument.double().requires_grad_() for argument in arguments]
    result = function(*wide)
    exact = [result, *torch.autograd.grad(result, wide, gradient.double())]
    for new, right in zip(computed, exact, strict=True):
        assert (new - right).norm() <= 2e-6 * right.norm()


def test_heads_are_lanes():
    """One tile a row, which is read once."""
    text = text_of(rotary, *rotary_arguments(8, 128, 8, 64))
    assert text.count("for ") == 1
    assert text.count("+ lane512)\n") >= 1 and "at_i" not in text
    (load,) = {row.strip() for row in text.splitlines() if row.endswith("512 * row_i1 + lane512)")}
    assert "in0" in load


def test_what_does_not_lie_side_by_side_stays_a_loop():
    """Channels of an image, far from each other, and windows around them."""

    def pooled(x: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(F.avg_pool2d(x, 2).permute(0, 2, 3, 1), weight.shape, weight)

    assert "lane128" in text_of(pooled, torch.zeros(8, 96, 28, 28), torch.zeros(96))


def test_a_row_waits_for_the_one_before_where_it_keeps_something_in_memory():
    arguments = [argument.requires_grad_() for argument in images(64, 6, 40, 33)]
    first = text_of(group_norm, *arguments, backward=True).split("@triton.jit")[1]
    assert "row" in first.split("(", 1)[1].split(")")[0]  # a buffer of rows is an argument
    of_rows = [line for line in first.splitlines() if line.startswith(" " * 8)]
    assert of_rows[-1].strip() == BARRIER


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (F.layer_norm, (torch.zeros(256, 1024), [1024], torch.zeros(1024), torch.zeros(1024))),
        (F.layer_norm, (torch.zeros(256, 2048), [2048], torch.zeros(2048), torch.zeros(2048))),
        (F.group_norm, (torch.zeros(4, 64, 32, 32), 32, torch.zeros(64), torch.zeros(64))),
        (F.layer_norm, (torch.zeros(256, 1020), [1020], torch.zeros(1020), torch.zeros(1020))),
    ],
)
def test_what_programs_have_left_is_dealt_out_to_all(function, arguments):
    """Both sums at once, of eight columns that lie side by side."""
    inputs = [a.requires_grad_() if isinstance(a, Tensor) else a for a in arguments]
    last = text_of(function, *inputs, backward=True).split("@triton.jit")[2]
    loops = [line for line in last.splitlines() if "for from_" in line]
    assert len(loops) == 1 and "0, programs, 256)" in loops[0]
    loads = [line for line in last.splitlines() if "tl.load" in line]
    assert len(loads) == 2 and all("8 * row + lane8 + " in load for load in loads)


def test_sums_of_channels_are_added_by_memory_itself():
    """No row waits for what the one before it has left."""
    first = text_of(batch_norm, *images(776, 64, 28, 28)).split("@triton.jit")[1]
    before, rows = first.split("for tile in")
    assert before.count(BARRIER) == 1 and BARRIER not in rows
    assert rows.count("tl.atomic_add(partial") == 2
