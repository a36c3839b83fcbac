"""Which loads ask for later rows, and into which cache."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from hemstitch.runtime.native import program_of
from hemstitch.stitch.machine import generic_cpu
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
    assert set(ASK.findall(program_of(step).text)) == localities
