"""Which axes are rows and which one runs over lanes, where that says how many tasks have work."""

from __future__ import annotations

from math import prod

import pytest
import torch

from hemstitch.kernel_ir.nodes import Loop, statements, walk
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

GPU = generic_gpu()


def first_nest(function, *arguments, machine=GPU):
    """Of the only kernel: the extents of its rows and of its lanes."""
    ((_, plan),) = plans_of(function, arguments, machine)
    (step,) = plan.kernels
    nest = step.stitched.kernel.phases[0].nests[0]
    lanes = [s.axis.extent for s in walk(nest.body) if isinstance(s, Loop) and s.lanes]
    return [axis.extent for axis in nest.rows], lanes


@pytest.mark.parametrize("columns", [2, 8, 64])
def test_sums_of_few_columns_keep_all_programs_busy(columns):
    """Lanes are next to each other in memory: several rows share a tile."""
    rows, lanes = first_nest(lambda x: x.sum(0), torch.zeros(1 << 16, columns))
    assert (rows, lanes) == ([1 << 16], [columns])


def test_what_few_rows_would_leave_to_few_programs_is_dealt_out():
    """Statistics of 64 channels: a barrier each takes less than half a GPU."""

    def normalized(x):
        return (x - x.mean((0, 2), keepdim=True)).relu()

    rows, _ = first_nest(normalized, torch.zeros(1024, 64, 784))
    assert rows == [1024, 64]


def test_on_a_processor_many_columns_go_in_blocks():
    """Each thread clears, adds to and flushes wide sums of its own: as dear as the columns here."""
    rows, _ = first_nest(lambda x: x.sum(0), torch.zeros(32, 1 << 16), machine=generic_cpu(16, 8))
    assert rows == [64]


@pytest.mark.parametrize("heads_outside", [False, True])
def test_rows_of_a_sum_are_rows_though_others_add_them_up(heads_outside):
    """Rotary and RMS norm backward: the rows of the norm, whatever the gradient's layout is."""

    def backward(gradient, x, scale):
        flat = gradient.transpose(1, 2).reshape(x.shape)
        product = flat * x
        return product.sum(-1, keepdim=True) * scale + flat, (flat * scale).sum((0, 1))

    shape = (296, 8, 128, 64)
    gradient = torch.zeros(shape) if heads_outside else torch.zeros(296, 128, 8, 64).transpose(1, 2)
    rows, _ = first_nest(backward, gradient, torch.zeros(296, 128, 512), torch.zeros(296, 128, 1))
    assert prod(rows) == 296 * 128


def test_partial_results_that_fill_memory_are_not_left_by_every_program():
    """Gradients of places and of weights: rows are places, each whole in one program."""

    def backward(x, weight):
        product = x * weight
        return product.sum(0), product.sum((0, 1)), product.sum(-1)

    rows, _ = first_nest(backward, torch.zeros(32, 512, 768), torch.zeros(768))
    assert rows == [512]


def test_lanes_lie_side_by_side_where_sums_wait_for_other_rows():
    """Images of four by four: along the batch, each lane of each sum would be a line of its own."""

    def shrunk(x):
        windows = torch.nn.functional.pad(x, (0, 0, 0, 0, 1, 1)).unfold(1, 3, 2).sum(-1)
        return torch.nn.functional.pad(windows, (0, 0, 1, 1)).unfold(2, 3, 2).sum(-1)

    plans = plans_of(shrunk, (torch.zeros(1364, 4, 4, 4),), generic_cpu(1, 8))
    kernels = [step.stitched.kernel for _, plan in plans for step in plan.kernels]
    loops = [s for k in kernels for s in statements(k) if isinstance(s, Loop) and s.lanes]
    assert {loop.axis.extent for loop in loops} <= {4, 16}
    assert all(len(kernel.phases) == 1 for kernel in kernels)


def test_axes_that_are_not_padded_are_walked_as_one():
    def padded(x):
        return torch.nn.functional.pad(x, (1, 2)).exp()

    rows, lanes = first_nest(padded, torch.zeros(8, 16, 4, 64), machine=generic_cpu(1, 8))
    assert (rows, lanes) == ([8 * 16 * 4], [67])


PLACES = torch.arange(17) * 32 // 17
NEXT, LAST = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    "function, shape, extent",
    [
        # Lines 4 KB apart, of which 256 fill L2.
        (lambda x: x[:, PLACES[:, None], PLACES], (1024, 32, 32), 17),
        # Lines side by side, more than L2 holds.
        (lambda x: x[:, NEXT] * x[:, LAST].log1p().tanh(), (139810, 3, 5), 5),
    ],
)
def test_lanes_do_not_lie_in_more_lines_than_caches_hold(function, shape, extent, lanes):
    _, extents = first_nest(function, torch.zeros(shape), machine=generic_cpu(1, lanes))
    assert set(extents) == {extent}
