"""What passes by the caches: results of kernels that touch more than those hold, in whole lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hemstitch.driver.cpu_kernels import program_of
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu import non_temporal as streams
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.cpu.lane_loop import LaneLoop, fills_lines
from hemstitch.toolchain.jit import threads_now
from tests.compiled import plans_of

ROWS = CPU.non_temporal_bytes // 8 // 1024  # of 1024 f32 that are read and written


def texts(function, *arguments: Tensor) -> list[str]:
    ((_, plan),) = plans_of(function, arguments, generic_cpu(2, 16))
    return [program_of(step, threads_now()).text for step in plan.kernels]


def compiled(function):
    return torch.compile(function, backend="hemstitch", options={"strict": True})


def half(x: Tensor) -> Tensor:
    return torch.relu(x) / 2


@pytest.mark.parametrize(
    ("rows", "width", "streams"),
    [(ROWS, 1024, True), (ROWS - 1, 1024, False), (ROWS + 200, 1000, True)],
)
def test_what_is_larger_than_the_caches(rows: int, width: int, streams: bool) -> None:
    (text,) = texts(half, torch.empty(rows, width))
    assert ("!nontemporal" in text) == streams
    assert ("fence" in text) == streams


@pytest.mark.parametrize(
    ("width", "streams"),
    [(CPU.peeled_row_elements + 1, True), (CPU.peeled_row_elements - 1, False)],
)
def test_short_rows_that_begin_within_a_line_do_not(width: int, streams: bool) -> None:
    """Longer ones begin with a masked vector that ends where a line does."""
    x = torch.empty(CPU.non_temporal_bytes // 8 // width + 9, width + 1)
    (text,) = texts(lambda x: torch.relu(x[:, 1:]) + 1, x)
    assert ("!nontemporal" in text) == streams


PEELED: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: torch.relu(x[:, 1:]) + 1,
    "row buffer": lambda x: torch.softmax(x[:, :-2], -1),
    "half": lambda x: (x[:, 3:] * 2).bfloat16(),
    "bytes": lambda x: x[:, 5:] > 0.5,
    "two types": lambda x: (x[:, 7:] * 3, (x[:, 7:] * 3).half()),
    "padded": lambda x: torch.nn.functional.pad(torch.tanh(x), (3, 2)),
    "places": lambda x: x[:, 1:] + torch.arange(x.shape[1] - 1),
    "joined": lambda x: torch.cat([x * 2, x[:, :-3].flip(0)], 1),
    "backwards": lambda x: x.flip(1)[:, 2:] * 2,
    "whole sum": lambda x: torch.log_softmax(x[:, 1:], -1) * x[:, 1:].abs().mean(-1, keepdim=True),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PEELED)
def test_rows_that_begin_within_a_line(
    name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every place of a line, with each number of lanes left."""
    monkeypatch.setattr(streams, "CPU", replace(CPU, non_temporal_bytes=0))
    function = PEELED[name]
    torch._dynamo.reset()
    run = torch.compile(function, backend="hemstitch", dynamic=dynamic, options={"strict": True})
    for width in (
        CPU.peeled_row_elements + 9,
        2 * CPU.peeled_row_elements + 24,
        1000,
        1023,
    ):
        x = torch.randn(33, width)
        torch.testing.assert_close(run(x), function(x), rtol=1e-5, atol=1e-5)
        assert any("!nontemporal" in text for text in texts(function, x))


def test_the_callers_memory_does_not() -> None:
    """It may begin anywhere."""

    def double(x: Tensor, y: Tensor) -> None:
        x.copy_(y * 2)

    (text,) = texts(double, torch.empty(ROWS, 1024), torch.empty(ROWS, 1024))
    assert "!nontemporal" not in text


@pytest.mark.parametrize(
    ("index", "width", "dtype", "fills"),
    [
        (Index(((LANES := Axis("i", 64), 1),), 0), 16, DType.F32, True),
        (Index(((LANES, 1),), 16), 16, DType.F32, True),
        (Index(((LANES, 1),), 8), 16, DType.F32, False),
        (Index(((LANES, 2),), 0), 16, DType.F32, False),
        (Index(((Axis("row", 9), 1000), (LANES, 1)), 0), 16, DType.F32, False),
        (Index(((Axis("row", 9), 1024), (LANES, 1)), 0), 16, DType.BF16, True),
        (at(LANES), 8, DType.BOOL, False),  # eight bytes
    ],
)
def test_whole_lines(index: Index, width: int, dtype: DType, fills: bool) -> None:
    assert fills_lines(LaneLoop(LANES, (), None, False), width, dtype, index) == fills
    assert not fills_lines(None, width, dtype, index)


def test_what_was_stored_so_is_there() -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        return torch.relu(x) * 1.5, x > 0, x.bfloat16(), (x * 2).sum(0)

    x = torch.randn(ROWS + 3, 1024)
    for result, expected in zip(compiled(several)(x), several(x)):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)


def test_memory_of_the_caller_that_begins_within_a_line() -> None:
    def change(x: Tensor, y: Tensor) -> None:
        x.copy_(y * 2)

    x, y = torch.zeros(ROWS * 1024 + 1)[1:], torch.randn(ROWS * 1024)
    compiled(change)(x, y)
    torch.testing.assert_close(x, y * 2)
