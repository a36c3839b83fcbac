"""Where partial results are combined once for all readers, and where each reader does it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hemstitch.kernel_ir.nodes import THREADS, Begin, Load, Loop, walk
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

GPU = generic_gpu()


def phases_of(function, *arguments, machine=GPU):
    """Of the only kernel."""
    ((_, plan),) = plans_of(function, arguments, machine)
    (step,) = plan.kernels
    return step.stitched.kernel.phases


def combines_for_itself(phase):
    """A task reads what every task has left of all elements."""
    prologue = [s for nest in phase.nests for s in walk(nest.prologue)]
    return any(isinstance(s, Loop) and s.axis.extent == THREADS for s in prologue)


def centred(x):
    return x - x.sum(0)


def test_many_columns_are_combined_once():
    """Each a row of its own, so that all tasks have some."""
    _, between, last = phases_of(centred, torch.zeros(8192, 1024))
    (nest,) = between.nests
    assert [axis.extent for axis in nest.rows] == [1024]
    assert not combines_for_itself(last) and last.begin is Begin.BARRIER
    loads = [s for s in walk(last.nests[0].body) if isinstance(s, Load)]
    assert [load.buffer.size for load in loads] == [8192 * 1024, 1024]


@pytest.mark.parametrize("columns", [1, 64])
def test_a_barrier_costs_more_than_few_columns(columns):
    _, last = phases_of(centred, torch.zeros(1 << 16, columns))
    assert combines_for_itself(last)


def test_few_threads_combine_for_themselves():
    x = torch.zeros(8192, 1024)
    assert len(phases_of(centred, x, machine=generic_cpu(2, 8))) == 2
    assert len(phases_of(centred, x, machine=generic_cpu(128, 8))) == 3


def test_sums_share_the_phase_that_combines_them():
    """One of them alone would not pay for it."""

    def standardized(x):
        return x.sum(0) * x - x.exp().sum(0) / x

    columns = 100
    assert len(phases_of(centred, torch.zeros(1 << 16, columns))) == 2
    _, between, _ = phases_of(standardized, torch.zeros(1 << 16, columns))
    assert len(between.nests) == 2


def test_what_is_read_once_is_combined_on_the_spot():
    """Each column in one row of the second phase."""
    _, last = phases_of(lambda x: x.sum(0), torch.zeros(8192, 1024))
    assert not combines_for_itself(last)


def test_a_ticket_after_the_results_are_combined():
    def norm(x):
        return x.sum(0).square().sum().sqrt()

    phases = phases_of(norm, torch.zeros(8192, 1024))
    assert [phase.begin for phase in phases[1:]] == [Begin.BARRIER, Begin.LAST_BLOCK]
    dear = replace(GPU, barrier_seconds=1e-4, launch_seconds=1e-4)
    phases = phases_of(norm, torch.zeros(8192, 1024), machine=dear)
    assert [phase.begin for phase in phases[1:]] == [Begin.LAST_BLOCK]
