"""What `verify` compares with eager: single wrong elements are found, rounding is not."""

from __future__ import annotations

import pytest
import torch

from hemstitch.runtime.verified import disagreement
from tests.compiled import watched

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
@pytest.mark.parametrize("wrong", [0.0, float("nan"), float("inf"), -3.0])
def test_one_wrong_element(dtype: torch.dtype, size: int, wrong: float) -> None:
    expected = (torch.rand(size) + 0.5).to(dtype)  # none is near zero
    found = expected.clone()
    place = size // 2
    found[place] = wrong
    why = disagreement(found, expected)
    assert why is not None and f"the worst at ({place},)" in why and f"1 of {size}" in why
    assert disagreement(expected, found) is not None


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_are_equal(dtype: torch.dtype) -> None:
    expected = torch.ones(3, 5, dtype=dtype)
    found = expected.clone()
    found[2, 1] = 0
    why = disagreement(found, expected)
    assert why is not None and "(2, 1)" in why
    assert disagreement(expected, expected.clone()) is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_passes(dtype: torch.dtype) -> None:
    exact = torch.randn(64, 512, dtype=torch.float64) * 10 ** torch.randn(64, 1).double()
    exact[0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    rounded = exact.to(dtype)
    sums = exact[1:].cumsum(1).to(dtype), exact[1:].flip(1).cumsum(1).flip(1).to(dtype)
    assert disagreement(rounded, exact.to(dtype)) is None
    assert disagreement(sums[0][:, -1], exact[1:].flip(1).cumsum(1)[:, -1].to(dtype)) is None
    assert disagreement(sums[0], sums[1]) is not None  # other sums


def test_empty_and_other_shapes() -> None:
    assert disagreement(torch.empty(0, 3), torch.empty(0, 3)) is None
    assert disagreement(torch.empty(3), torch.empty(0, 3)) is not None
    assert disagreement(torch.ones(3), torch.ones(3, dtype=torch.float64)) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_of_a_transformer_has_no_false_alarm(dtype: torch.dtype) -> None:
    block = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).to(dtype)
    function, _ = watched(block, verify=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 9, 32).to(dtype).requires_grad_()
        (function(x) * torch.randn(2, 9, 32)).sum().backward()
