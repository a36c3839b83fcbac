"""Rows that are only copied, by the C library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hemstitch.driver.cpu_kernels import program_of
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import threads_now
from tests.compiled import plans_of

LONG = CPU.memcpy_bytes // 4  # of f32
COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda x: torch.cat([x, x.flip(0)], -1),
    "flip": lambda x: x.flip(0),
    "slice": lambda x: x[:, 3:].clone(),
    "roll": lambda x: x.roll(5, -1),
    "rows": lambda x: x[torch.tensor([2, 0, 2])],
    "pad": lambda x: torch.nn.functional.pad(x, (3, 2), value=1.5),
    "repeat": lambda x: x.repeat(2, 3),
    "empty": lambda x: torch.cat([x[:0], x]),
}


def copies(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """How many rows of the printed kernels the library copies."""
    ((_, plan),) = plans_of(function, (x,), generic_cpu(1, 16))
    texts = [program_of(step, threads_now()).text for step in plan.kernels]
    return sum(text.count("call void @llvm.memcpy") for text in texts)


@pytest.mark.parametrize(("width", "expected"), [(LONG, 1), (LONG - 1, 0)])
def test_long_rows_are(width: int, expected: int) -> None:
    assert copies(lambda x: x.flip(0), torch.empty(64, width)) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(0) * 2,
        lambda x: x.flip(-1),
        lambda x: x.flip(0).double(),
        lambda x: x[:, ::2].clone(),
    ],
)
def test_what_is_no_copy_of_rows_is_not(function: Callable[[Tensor], Tensor]) -> None:
    assert copies(function, torch.empty(64, 4 * LONG)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", COPIES)
def test_copies_are_eagers(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    function = COPIES[name]
    torch._dynamo.reset()
    compiled = torch.compile(
        function, backend="hemstitch", dynamic=dynamic, options={"strict": True}
    )
    for width in (LONG * 2 + 3, 17, LONG, 4 * LONG + 1):
        x = (torch.randn(3, width + 1) * 9).to(dtype)[:, 1:]
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
        assert compiled(x).stride() == function(x).stride()


def test_bits_stay_as_they_are() -> None:
    """A NaN's payload, and one that signals."""
    bits = torch.tensor([0x7FC12345, 0x7F812345, -0x3EDCBB, -(1 << 31)], dtype=torch.int32)
    x = bits.repeat(2, LONG).view(torch.float32)
    compiled = torch.compile(lambda x: x.flip(0), backend="hemstitch", options={"strict": True})
    assert torch.equal(compiled(x).view(torch.int32), x.flip(0).view(torch.int32))
