"""What holds a printed kernel of several phases together: taken out, the emulator sees it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from hemstitch.codegen.triton.kernel import SEMAPHORE, print_kernel
from hemstitch.ir.dims import evaluate
from hemstitch.runtime.emulator import Checks, Order, RaceError, UnwrittenScratchError, emulate
from hemstitch.runtime.source import kernel_of
from hemstitch.stitch.machine import generic_gpu
from tests.compiled import plans_of

PROGRAMS = 3


def rows_columns_elementwise(x):
    rows = x / x.exp().sum(1, keepdim=True)
    return torch.tanh(rows - rows.sum(0))


def run(program, text, x, order):
    """The result of the kernel with this text."""
    found = torch.full(x.shape, float("nan"))
    arguments = dict(zip([b.name for b in program.parameters], (x, found)))
    sizes = {"threads": PROGRAMS}
    for buffer in program.scratch:
        arguments[buffer.name] = torch.full((evaluate(buffer.size, sizes),), float("nan"))
    arguments[SEMAPHORE] = torch.zeros(1, dtype=torch.int32)
    checks = Checks(scratch=frozenset(b.name for b in program.scratch))
    emulate(kernel_of(text, program.entry), PROGRAMS, arguments, checks=checks, order=order)
    return found


@pytest.fixture(scope="module")
def program():
    [(_, plan)] = plans_of(rows_columns_elementwise, [torch.zeros(40, 50)], generic_gpu())
    [step] = plan.kernels
    return print_kernel(step.stitched.kernel, step.groups[0].hint, PROGRAMS)


@pytest.mark.parametrize("order", Order)
def test_one_launch_in_any_order(program, order):
    assert program.barriers >= 1
    x = torch.randn(40, 50)
    found = run(program, program.text, x, order)
    torch.testing.assert_close(found, rows_columns_elementwise(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", Order)
def test_without_a_barrier_there_is_a_race(program, order):
    lines = program.text.splitlines()
    barrier = next(number for number, line in enumerate(lines) if "grid_barrier" in line)
    text = "\n".join([*lines[:barrier], *lines[barrier + 1 :]]) + "\n"
    with pytest.raises((RaceError, UnwrittenScratchError)):
        run(program, text, torch.randn(40, 50), order)
