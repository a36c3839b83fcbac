"""Functions whose results are rounded to a half type at once, of every number that there is: on a
GPU, or emulated, where their formulas are computed in double precision."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
HAS_GPU = torch.cuda.is_available()
OPTIONS = {"target": "cuda" if HAS_GPU else "interpret", "strict": True}
FUNCTIONS = {
    **{name: getattr(torch, name) for name in ("exp", "sigmoid", "tanh", "sqrt", "rsqrt")},
    "reciprocal": torch.reciprocal,
    "quotient": lambda x: x / (x.abs() + 1.0),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_every_number(name, dtype):
    """Within one unit of the last place of the exact result, where it is a normal number."""
    torch._dynamo.reset()
    function, device = FUNCTIONS[name], "cuda" if HAS_GPU else "cpu"
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).to(device)
    result = torch.compile(function, backend="hemstitch", options=OPTIONS)(x).double()
    exact = function(x.double())
    if name == "quotient":  # the divisor is rounded
        exact = x.double() / (x.abs() + 1.0).double()
    right = exact.to(dtype).double()
    numbers = torch.isfinite(right) & torch.isfinite(result)
    assert torch.equal(torch.isnan(result), torch.isnan(right))
    off = (result - right)[numbers].abs()
    least = torch.finfo(dtype).tiny
    assert (off <= torch.finfo(dtype).eps * right[numbers].abs() + least).all()
    # What is infinite in one is so, or nearly, in the other.
    beyond = ~numbers & ~torch.isnan(right)
    for large in (result[beyond], right[beyond]):
        assert (large.abs() > torch.finfo(dtype).max / 2).all()
    assert torch.equal(result[beyond].sign(), right[beyond].sign())
