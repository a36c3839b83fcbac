"""Sums over rows that stay in registers, and loads that begin with the row: Triton kernels,
emulated with all checks, beside eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.printed.test_printed_text import text_of

pytest.importorskip("triton")
OPTIONS = {"target": "interpret", "strict": True, "check": True}


def stacked(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """As the gradients of queries, keys and values become that of what they were cut from."""
    stack = torch.stack([query, key, value], 1)
    return stack, stack.sum(0)


def gelu_and_bias(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    gradients = torch.ops.aten.gelu_backward(gradient, x)
    return gradients, gradients.sum(0)


def normed(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape) * weight + residual


def randn(count: int, *shape: int) -> list[Tensor]:
    return [torch.randn(shape) for _ in range(count)]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (stacked, randn(3, 40, 48)),
        (stacked, randn(3, 33, 7)),
        (gelu_and_bias, randn(2, 21, 1536)),
        (normed, [*randn(2, 19, 200), torch.randn(200)]),
    ],
)
def test_results_are_eagers(function, arguments):
    torch._dynamo.reset()
    results = torch.compile(function, backend="hemstitch", options=OPTIONS)(*arguments)
    exact = function(*(argument.double() for argument in arguments))
    pairs = zip(results, exact, strict=True) if isinstance(exact, tuple) else [(results, exact)]
    for new, right in pairs:
        assert (new - right).norm() <= 1e-6 * right.norm()


def functions_of(text: str) -> list[str]:
    return text.split("@triton.jit")[1:]


def test_rows_that_add_to_three_places_are_three_nests():
    """Nothing is added up in memory, and nobody waits."""
    text = text_of(stacked, *(torch.zeros(4096, 768) for _ in range(3)))
    for number, function in enumerate(functions_of(text)[:3]):
        assert f"i0 = {number}; tiles of 2 rows" in function
        assert "carried_partial1 = carried_partial1 + " in function
        assert "sum_partial" not in function and "debug_barrier" not in function


def test_lanes_fill_tiles_where_sums_over_rows_are_all_there_is():
    text = text_of(gelu_and_bias, *(torch.zeros(4096, 3072) for _ in range(2)))
    assert "lane1024" in text and "lane4096" not in text
    assert all("mask" not in function for function in functions_of(text)[:3])
    assert "lane1024 < 768" in text_of(gelu_and_bias, *(torch.zeros(4096, 768) for _ in range(2)))


def test_loads_behind_a_sum_begin_with_the_row():
    text = text_of(normed, *(torch.zeros(4096, 1024) for _ in range(2)), torch.zeros(1024))
    lines = [line.strip() for line in functions_of(text)[0].splitlines()]
    loads = [number for number, line in enumerate(lines) if "tl.load" in line]
    sums = [number for number, line in enumerate(lines) if "tl.sum" in line]
    of_rows = [n for n in loads if "1024 * row" in lines[n]]
    assert len(of_rows) == 2 < len(loads) and max(of_rows) < min(sums)


def test_no_more_begins_early_than_registers_hold():
    def many(x: Tensor, *tensors: Tensor) -> Tensor:
        result = x / x.sum(-1, keepdim=True)
        for tensor in tensors:
            result = result * torch.sqrt(tensor)
        return result

    text = text_of(many, *(torch.zeros(4096, 1024) for _ in range(9)))
    before, _, after = functions_of(text)[0].partition("tl.sum")
    assert before.count("tl.load") == 8 and after.count("tl.load") == 1
