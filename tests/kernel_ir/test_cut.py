"""Loops in pieces: what is left in each, and that they mean the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hemstitch.kernel_ir.nodes import Let, Load, Loop, statements
from hemstitch.kernel_ir.passes.index_set_splitting import split_loops, split_rows
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.planning.plan import KernelStep
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, plan_for, plans_of
from tests.effort import examples

CPU = generic_cpu(2, 8)
ROWS = 5


def in_pieces(plan):
    """With all kernels cut, and checked."""
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            kernel = split_loops(split_rows(step.stitched.kernel))
            verify(kernel)
            step = replace(step, stitched=replace(step.stitched, kernel=kernel))
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def pieces_of(function, *arguments):
    """The only kernel of a program, cut, and the lengths of its lane loops."""
    ((_, plan),) = plans_of(function, arguments, CPU)
    (step,) = in_pieces(plan).kernels
    kernel = step.stitched.kernel
    loops = [s for s in statements(kernel) if isinstance(s, Loop) and s.lanes]
    return kernel, [loop.axis.extent for loop in loops]


def gates(a, b, c):
    """The sums of rows: what is only stored is stored part by part."""
    return torch.cat((a.exp(), b.tanh(), c.sigmoid()), 1).sum(1)


def wide(*columns):
    return [torch.zeros(ROWS, n) for n in columns]


def test_a_piece_computes_its_part_alone(golden):
    kernel, lengths = pieces_of(gates, *wide(64, 32, 48))
    assert lengths == [64, 32, 48]
    assert all(load.mask is None for load in statements(kernel) if isinstance(load, Load))
    assert sum(isinstance(s, Let) for s in statements(kernel)) == 3
    golden(show(kernel) + "\n")


def test_a_vector_across_a_border_chooses():
    kernel, lengths = pieces_of(gates, *wide(50, 50, 50))
    assert lengths == [48, 16, 32, 16, 38]
    masked = [s for s in statements(kernel) if isinstance(s, Load) and s.mask is not None]
    assert len(masked) == 4  # two parts in each of two pieces


def test_zeros_around_are_added_without_a_load():
    kernel, lengths = pieces_of(lambda x: F.pad(x.exp(), (32, 16)).sum(1), *wide(64))
    assert lengths == [32, 64, 16]
    assert sum(isinstance(s, Load) for s in statements(kernel)) == 1


def test_a_loop_that_chooses_nothing_is_not_touched():
    ((_, plan),) = plans_of(torch.exp, wide(100), CPU)
    (step,) = plan.kernels
    assert split_loops(split_rows(step.stitched.kernel)) == step.stitched.kernel


def test_a_loop_of_many_borders_stays_whole():
    def function(*parts):
        return (torch.cat(parts[:4], 1) + torch.cat(parts[4:], 1)).sum(1)

    _, lengths = pieces_of(function, *wide(33, 33, 33, 33, 20, 40, 60, 12))
    assert lengths == [132]


def test_rows_of_a_product_lie_in_one_part():
    """As the gradient of a gate's weights has them."""

    def function(a, b, c, x):
        return torch.cat((a, b.tanh(), c), 1).t() @ x

    ((graph, _),) = plans_of(function, [*wide(64, 32, 40), torch.zeros(ROWS, 48)], CPU)
    (step,) = plan_for(graph, replace(CPU, launch_seconds=1.0)).kernels
    kernel = split_rows(step.stitched.kernel)
    verify(kernel)
    row_extents = [nest.rows[-1].extent for phase in kernel.phases for nest in phase.nests]
    assert row_extents == [64, 32, 40]
    assert all(load.mask is None for load in statements(kernel) if isinstance(load, Load))


@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod])
def test_scans_stay_whole(scan):
    _, lengths = pieces_of(lambda a, b: scan(torch.cat((a, b), 1), 1), *wide(64, 64))
    assert 128 in lengths


WIDTHS = st.lists(st.integers(1, 70), min_size=2, max_size=4)
REDUCTIONS = {
    "none": lambda x: x * 2,
    "softmax": lambda x: torch.softmax(x, 1),
    "columns": lambda x: (x.sum(0), x.sum()),
    "position": lambda x: x.argmax(1),
    "turned": lambda x: x.t().contiguous(),
    "windows": lambda x: F.pad(x, (3, 17), value=1.5).amax(1),
}


@settings(max_examples=examples(60), deadline=None)
@given(WIDTHS, st.sampled_from(sorted(REDUCTIONS)), st.integers(0, 1))
def test_pieces_mean_what_the_loop_meant(widths, name, axis):
    """Parts side by side, or one below the other."""
    torch.manual_seed(sum(widths))
    parts = [torch.randn(*((ROWS, n) if axis else (n, ROWS))) for n in widths]

    def function(*parts):
        return REDUCTIONS[name](torch.cat(parts, axis))

    for graph, plan in plans_of(function, parts, CPU):
        whole, cut_up = (
            Simulation({}, CPU.threads, order=(1, 0)).run(graph, variant, parts)
            for variant in (plan, in_pieces(plan))
        )
        for a, b in zip(whole, cut_up, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
