"""Rows walked once as Triton kernels, emulated with all checks: no less exact than eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hemstitch.report.explain import explain
from tests.stitching.test_online import (
    PROGRAMS,
    attention,
    infinite_mask,
    masked,
    operands,
)
from tests.test_kernel_counts import faked

pytest.importorskip("triton")
OPTIONS = {"target": "interpret", "strict": True, "check": True}
TIMES, LEAST = 2.0, 1e-6  # errors that are allowed: so many times eager's, and so much besides


def emulated(function, arguments, **keywords):
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(function, backend="hemstitch", options=OPTIONS, **keywords)
        return compiled(*arguments)


def error(result, exact):
    """Norm of the difference, where both are numbers: of rows that hide nearly all keys eager makes
    NaNs in bf16."""
    difference, numbers = result.double() - exact, ~exact.isnan() & ~result.isnan()
    return float(difference[numbers].norm() / exact[numbers].norm())


def check(function, arguments, **keywords):
    result = emulated(function, arguments, **keywords)
    exact, eager = function(*(x.double() for x in arguments)), function(*arguments)
    assert result.dtype is eager.dtype
    assert torch.equal(result.isnan(), exact.isnan())
    assert error(result, exact) <= TIMES * error(eager, exact) + LEAST


@pytest.mark.parametrize(("function", "arguments"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs(function, arguments):
    check(function, arguments)


HALF_TYPES = [(300, 24, torch.bfloat16), (1000, 64, torch.float16), (257, 80, torch.bfloat16)]


@pytest.mark.parametrize(("keys", "width", "dtype"), HALF_TYPES, ids=str)
def test_half_types(keys, width, dtype):
    arguments = operands(keys=keys, width=width, batch=(1, 2), dtype=dtype)
    check(masked, [*arguments, infinite_mask(keys=keys).to(dtype)])


def test_explained():
    """A report schedules the group as the kernel was: with its long rows walked once."""
    report = explain(attention, *faked(operands()), options={"target": "interpret"})
    assert report.kernel_count == 1


def test_many_rows_of_one_tile_and_the_next():
    check(attention, operands(queries=150, batch=(1, 1)))


def test_a_length_that_is_no_constant():
    arguments = operands(queries=20, keys=60)
    for x in arguments[1:]:
        torch._dynamo.mark_dynamic(x, 2)
    check(attention, arguments)


def test_dropout_hides_what_it_hides_elsewhere():
    """The same seed gives the same mask on a processor, where the library multiplies."""

    def function(q, k, v):
        return F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.3) @ v

    arguments = operands(batch=(1, 1))
    results = []
    for target in ("interpret", "cpu"):
        torch._dynamo.reset()
        torch.manual_seed(7)
        options = OPTIONS | {"target": target}
        compiled = torch.compile(function, backend="hemstitch", options=options)
        results.append(compiled(*arguments))
    assert error(results[0], results[1].double()) < LEAST
