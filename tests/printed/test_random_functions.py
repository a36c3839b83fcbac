"""Random programs of PyTorch's functions, their kernels printed for a GPU and emulated."""

from __future__ import annotations

import pytest
import torch

from benchmarks.random_functions.draw import drawn
from benchmarks.random_functions.judge import difference, is_runnable
from benchmarks.random_functions.program import described
from tests.effort import IS_WHOLE

pytest.importorskip("triton")

# Of two equal zeros a maximum takes another one than eager on a processor: nobody promises which.
OF_ZEROS = (38, 155)


def test_results_and_gradients() -> None:
    seeds = [seed for seed in range(200 if IS_WHOLE else 16) if seed not in OF_ZEROS]
    for program in map(drawn, seeds):
        if program.lines and is_runnable(program):
            failure = difference(program, {"target": "interpret"})
            assert failure is None or failure.is_pytorch, f"{failure}\n{described(program)}"


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
