"""Which loads ask for later rows, and into which cache."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hemstitch.driver.cpu_kernels import program_of
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import threads_now
from tests.compiled import plans_of

ASK = re.compile(r"@llvm.prefetch.p0\(ptr %\w+, i32 0, i32 (\d), i32 1\)")


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def rows(x: Tensor) -> Tensor:
    return x.sum(-1)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


@pytest.mark.parametrize(
    ("function", "width", "localities"),
    [
        (softmax, 128, {"3"}),  # short rows come into L1
        (softmax, 1024, {"2"}),  # others into L2
        (softmax, 16384, set()),  # would push out what is in use
        (rows, 32, {"3"}),
        (rows, 1024, set()),  # walked once: the processor fetches ahead by itself
        (tanh, 1024, set()),
    ],
)
def test_rows_ask_for_the_next_ones(function, width: int, localities: set[str]) -> None:
    ((_, plan),) = plans_of(function, (torch.empty(512, width),), generic_cpu(2, 16))
    (step,) = plan.kernels
    assert set(ASK.findall(program_of(step, threads_now()).text)) == localities


def weights(grad: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(grad).t() @ x


@pytest.mark.parametrize(("steps", "is_long"), [(20000, True), (1000, False)])
def test_pieces_of_lines_are_asked_for(steps: int, is_long: bool) -> None:
    """Columns of a left operand, 32 at a time, into L1. Strips of the right one come into L2."""
    arguments = torch.empty(steps, 256), torch.empty(steps, 128)
    ((_, plan),) = plans_of(weights, arguments, generic_cpu(2, 16))
    (step,) = plan.kernels
    assert ("3" in ASK.findall(program_of(step, threads_now()).text)) == is_long


def pool_norm(x: Tensor) -> Tensor:
    pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
    return F.layer_norm(pooled, pooled.shape[-1:])


@pytest.mark.parametrize(("images", "is_large"), [(64, True), (4, False)])
def test_lines_of_channels_are_asked_for(images: int, is_large: bool) -> None:
    """Two lines of 28, by those of the four loads that begin something: two of a cache's each, for
    each of the rows that are printed side by side."""
    ((_, plan),) = plans_of(pool_norm, (torch.empty(images, 96, 28, 28),), generic_cpu(2, 16))
    (step,) = plan.kernels
    asked = ASK.findall(program_of(step, threads_now()).text)
    assert asked == (["2"] * 4 * 16 if is_large else [])


def test_blocks_of_a_long_sum_are_no_pieces() -> None:
    """They lie one behind the other: the processor fetches ahead by itself."""
    ((_, plan),) = plans_of(rows, (torch.empty(1320, 2640),), generic_cpu(2, 16))
    (step,) = plan.kernels
    assert not ASK.findall(program_of(step, threads_now()).text)
