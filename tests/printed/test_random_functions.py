"""Random programs of PyTorch's functions, their kernels printed for a GPU and emulated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.frontend.test_random_functions import check

pytest.importorskip("triton")

SIZES = (1, 2, 3, 4, 5, 8)
MOST = 600  # elements of a value


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 1 << 40))
def test_results_and_gradients(seed: int) -> None:
    check(seed, sizes=SIZES, most=MOST, options={"target": "interpret"})


def test_sizes_are_floors_of_negative_numbers_too() -> None:
    """As `roll` has them where sizes are symbols: -1 % size."""
    torch._dynamo.reset()
    options = {"target": "interpret", "strict": True, "check": True}
    compiled = torch.compile(
        lambda x: x.roll(1, -1) * 2, backend="hemstitch", dynamic=True, options=options
    )
    for columns in (5, 3, 8):
        x = torch.randn(4, columns)
        assert torch.equal(compiled(x), x.roll(1, -1) * 2)
