"""Rows side by side: which are, and that they mean the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.kernel_ir.nodes import Finish, Loop, statements
from hemstitch.kernel_ir.passes.row_interleaving import interleave_rows
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.planning.plan import KernelStep
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, plans_of
from tests.effort import examples

LANES = 16
CPU = generic_cpu(2, LANES)


def with_rows_abreast(plan):
    """All kernels, checked."""
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            kernel = interleave_rows(step.stitched.kernel, LANES)
            verify(kernel)
            step = replace(step, stitched=replace(step.stitched, kernel=kernel))
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def kernel_of(function, *arguments):
    ((_, plan),) = plans_of(function, arguments, CPU)
    (step,) = with_rows_abreast(plan).kernels
    return step.stitched.kernel


def rows_abreast(function, *arguments):
    (phase,) = kernel_of(function, *arguments).phases
    (nest,) = phase.nests
    return int(nest.why.removesuffix(" abreast").split()[-1]) if "abreast" in nest.why else 1


def softmax(x):
    return torch.softmax(x, -1)


def test_each_stage_of_one_row_comes_before_the_next_of_another(golden):
    golden(show(kernel_of(softmax, torch.zeros(8, 96))) + "\n")


@pytest.mark.parametrize(
    ("rows", "lanes", "count"),
    [
        *[(8, 96, 2), (8, 48, 4), (8, 20, 4), (8, 128, 1), (8, 97, 1)],
        *[(6, 20, 2), (7, 20, 1), (2, 20, 2)],
    ],
)
def test_as_many_as_are_short_and_come_out_even(rows, lanes, count):
    assert rows_abreast(softmax, torch.zeros(rows, lanes)) == count


def test_rows_that_hardly_wait_go_by_themselves():
    x = torch.zeros(8, 64)
    assert rows_abreast(lambda x: x.exp() + 1, x) == 1
    assert rows_abreast(lambda x: x.sum(1), x) == 1
    assert rows_abreast(lambda x: x / x.sum(1, keepdim=True), x) == 1


def test_rows_whose_lanes_lie_apart_go_by_themselves():
    assert rows_abreast(lambda x: torch.softmax(x, 0), torch.zeros(20, 8)) == 1


def test_every_row_finishes_each_of_its_sums():
    kernel = kernel_of(lambda x: F.layer_norm(x, (48,)), torch.zeros(8, 48))
    assert sum(isinstance(s, Finish) for s in statements(kernel)) == 4 * 2
    assert sum(isinstance(s, Loop) for s in statements(kernel)) == 4 * 3


ROWS = {
    "softmax": softmax,
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]) * x,
    "positions": lambda x: (x.argmax(-1), torch.softmax(x, -1).sum(0), x.amax(-1)),
    "two": lambda x: (torch.softmax(x, -1), x - x.mean(-1, keepdim=True)),
    "gathered": lambda x: torch.softmax(x, -1) + x[:, :1] * x.sum(-1, keepdim=True),
    "turned": lambda x: torch.softmax(x, -1).t().contiguous(),
    "dropped": lambda x: F.log_softmax(x, -1).masked_fill(x > 0.5, 0.0),
}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 12), st.integers(1, 70), st.sampled_from(sorted(ROWS)))
def test_rows_abreast_mean_what_they_did(rows, lanes, name):
    x = torch.randn(rows, lanes)
    for graph, plan in plans_of(ROWS[name], [x], CPU):
        one_by_one, interleaved = (
            Simulation({}, CPU.threads, order=(1, 0)).run(graph, variant, [x])
            for variant in (plan, with_rows_abreast(plan))
        )
        for a, b in zip(one_by_one, interleaved, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
