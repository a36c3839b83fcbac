"""Printed kernels compile for GPUs that are not there, and the lint has nothing to say. For all
workloads: `python -m benchmarks.machine_code`."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from benchmarks.cases import CASES
from benchmarks.machine_code import TARGETS, programs_of, verdict
from benchmarks.products import PRODUCTS

NAMES = (
    *("layer norm", "softmax + dropout", "rows, columns, elementwise", "where on a mask"),
    "cross entropy, label smoothing",
    *("attention, short rows", "linear + GELU + residual", "linear + residual + layer norm"),
)
ROWS = 4096


@pytest.fixture(scope="module")
def programs():
    """By workload: of forward and backward."""
    cases = (case for case in (*CASES, *PRODUCTS) if case.name in NAMES)
    return {case.name: programs_of(case, ROWS) for case in cases}


@pytest.mark.parametrize("target", TARGETS.split(","))
@pytest.mark.parametrize("name", NAMES)
def test_the_lint_has_nothing_to_say(programs, name, target):
    for program in programs[name]:
        found = verdict(target, program)
        assert not found.findings, str(found)


def test_a_loss_ends_with_a_ticket(programs):
    forward = programs["cross entropy, label smoothing"][0]
    assert (forward.barriers, forward.text.count("device.is_last")) == (0, 1)


def test_column_sums_beside_rows_are_one_launch_with_a_barrier(programs):
    [_, backward] = programs["layer norm"]
    assert (backward.barriers, backward.text.count("device.grid_barrier")) == (1, 1)
