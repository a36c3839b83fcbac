"""What holds a printed kernel of several phases together: taken out, the emulator sees it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hemstitch.targets.gpu.description import generic_gpu
from hemstitch.targets.gpu.kernel import SEMAPHORE
from hemstitch.toolchain.triton_source import kernel_of
from testing.emulated_kernels import scratch_of
from testing.emulator import Checks, Order, RaceError, UnwrittenScratchError, emulate
from tests.compiled import plans_of
from tests.lowered import triton

PROGRAMS = 3
MEETING = re.compile(r"device\.(grid_barrier|is_last)\(semaphore, programs\)")


def rows_columns_elementwise(x):
    rows = x / x.exp().sum(1, keepdim=True)
    return torch.tanh(rows - rows.sum(0))


def loss(x):
    return (x * x).mean()


def norm_of_columns(x):
    return x.exp().sum(0).square().sum().sqrt()


CASES = {rows_columns_elementwise: 20, loss: 200, norm_of_columns: 40}  # rows of 300 elements


def run(program, text, x, order, semaphore, programs=PROGRAMS):
    """The result of the kernel with this text."""
    result = torch.full((program.parameters[-1].size,), float("nan"))
    arguments = dict(zip([b.name for b in program.parameters], (x, result), strict=True))
    arguments |= scratch_of(program, {"threads": programs})
    arguments[SEMAPHORE] = semaphore
    checks = Checks(threads=True, scratch=frozenset(b.name for b in program.scratch))
    emulate(kernel_of(text, program.entry), programs, arguments, checks=checks, order=order)
    return result


def program_of(function, x):
    """The only kernel of it."""
    [(_, plan)] = plans_of(function, [x], generic_gpu())
    [step] = plan.kernels
    return triton(step.stitched.kernel, step.groups[0].hint, PROGRAMS)


def semaphore():
    return torch.zeros(1, dtype=torch.int32)


@pytest.fixture(scope="module", params=CASES, ids=lambda function: function.__name__)
def case(request):
    """A function, an argument, and the only kernel of it."""
    x = torch.randn(CASES[request.param], 300)
    return request.param, x, program_of(request.param, x)


def test_how_the_programs_meet(case):
    function, _, program = case
    functions = set(MEETING.findall(program.text))
    assert (program.barriers > 0, program.has_last_block) == (
        "grid_barrier" in functions,
        "is_last" in functions,
    )
    assert program.has_last_block == (function is not rows_columns_elementwise)


@pytest.mark.parametrize("order", Order)
def test_one_launch_in_any_order(case, order):
    function, x, program = case
    result = run(program, program.text, x, order, semaphore())
    torch.testing.assert_close(result, function(x).reshape(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", Order)
def test_without_a_meeting_there_is_a_race(case, order):
    _, x, program = case
    lines = program.text.splitlines()
    for number, line in enumerate(lines):
        if meeting := MEETING.search(line):
            without = line.replace(meeting[0], "True" if meeting[1] == "is_last" else "pass")
            text = "\n".join([*lines[:number], without, *lines[number + 1 :]]) + "\n"
            with pytest.raises((RaceError, UnwrittenScratchError)):
                run(program, text, x, order, semaphore())


@pytest.mark.parametrize("order", Order)
def test_scratch_in_the_place_of_what_is_still_needed_is_noticed(order):
    x = torch.randn(40, 300)
    program = program_of(rows_columns_elementwise, x)
    wrong = replace(program, lives=tuple((k, k) for k in range(len(program.scratch))))
    starts, _ = wrong.scratch_layout({"threads": PROGRAMS})
    assert len(starts) > 1 and not any(starts)
    with pytest.raises((RaceError, UnwrittenScratchError)):
        run(wrong, wrong.text, x, order, semaphore())


def test_a_semaphore_is_as_good_as_new_for_any_number_of_programs(case):
    function, x, program = case
    word = semaphore()
    for programs in (3, 1, 4):
        result = run(program, program.text, x, Order.RANDOM, word, programs)
        torch.testing.assert_close(result, function(x).reshape(-1), rtol=1e-5, atol=1e-5)
        assert word.item() in ((0,) if program.has_last_block else (0, -(2**31)))


def test_what_is_combined_once_comes_a_sector_of_memory_at_a_time():
    """Neighbours among partial results are in different rows."""
    [(_, plan)] = plans_of(lambda x: x - x.sum(0), [torch.zeros(8192, 1024)], generic_gpu())
    (step,) = plan.kernels
    program = triton(step.stitched.kernel, step.groups[0].hint, 528)
    assert "partial results, combined once; tiles of 8 rows" in program.text


def test_what_all_rows_read_does_not_keep_them_apart():
    """Column sums that each task combines before its first row are there for a tile of rows."""
    [(_, plan)] = plans_of(lambda x: x - x.sum(0), [torch.zeros(1 << 16, 64)], generic_gpu())
    (step,) = plan.kernels
    program = triton(step.stitched.kernel, step.groups[0].hint, 528)
    assert re.findall("tiles of (.*) rows", program.text) == ["32", "32"]
