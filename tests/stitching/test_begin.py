"""Where the last task to come does the rest alone, and where all wait at a barrier."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hemstitch.kernel_ir.nodes import Begin
from hemstitch.stitching.phase_begin import with_begins
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

GPU = generic_gpu()


def kernel_of(function, *arguments, machine=GPU):
    """The only one."""
    ((_, plan),) = plans_of(function, arguments, machine)
    (step,) = plan.kernels
    return step.stitched.kernel


def begins_of(function, *arguments, machine=GPU):
    """Of the phases after the first."""
    return [phase.begin for phase in kernel_of(function, *arguments, machine=machine).phases[1:]]


def loss(x, y):
    return ((x - y) ** 2).mean()


@pytest.mark.parametrize("machine", [GPU, generic_cpu(2, 8), generic_cpu(64, 16)], ids=str)
def test_a_loss_ends_with_a_ticket(machine):
    x, y = torch.zeros(4096, 1024), torch.zeros(4096, 1024)
    assert begins_of(loss, x, y, machine=machine) == [Begin.LAST_BLOCK]


def test_what_all_tasks_need_waits_at_a_barrier():
    assert begins_of(lambda x: x - x.sum(), torch.zeros(4096, 1024)) == [Begin.BARRIER]


def test_many_results_are_combined_by_many_tasks():
    assert begins_of(lambda x: x.sum(0), torch.zeros(8192, 32)) == [Begin.LAST_BLOCK]
    assert begins_of(lambda x: x.sum(0), torch.zeros(8192, 1024)) == [Begin.BARRIER]


def begins_with(seconds, kernel):
    """If a barrier took so long."""
    machine = replace(GPU, barrier_seconds=seconds)
    phases = with_begins([phase.nests for phase in kernel.phases], machine, {})
    return [phase.begin for phase in phases[1:]]


def test_the_price_of_a_barrier_decides():
    columns = kernel_of(lambda x: x.sum(0), torch.zeros(8192, 1024))
    assert begins_with(0.0, kernel_of(torch.sum, torch.zeros(1 << 22))) == [Begin.BARRIER]
    assert begins_with(GPU.barrier_seconds, columns) == [Begin.BARRIER]
    assert begins_with(1.0, columns) == [Begin.LAST_BLOCK]


def test_what_each_task_leaves_a_part_of_is_not_alone():
    """However dear a barrier is."""
    kernel = kernel_of(lambda x: (x - x.sum()).exp().sum(), torch.zeros(1 << 22))
    assert begins_with(1.0, kernel) == [Begin.BARRIER, Begin.LAST_BLOCK]


def test_two_phases_alone():
    """A barrier less each: the second is worth what the first alone is not."""
    machine = replace(GPU, barrier_seconds=3e-6)
    kernel = kernel_of(lambda x: x.sum(0), torch.zeros(8192, 128))
    first, last = (phase.nests for phase in kernel.phases)
    for count, expected in ((1, [Begin.BARRIER]), (2, [Begin.LAST_BLOCK, Begin.ALONE])):
        phases = with_begins([first, *[last] * count], machine, {})
        assert [phase.begin for phase in phases[1:]] == expected
