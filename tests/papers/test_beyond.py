"""What none of the papers' open code does: one kernel for reductions along columns in the middle,
for rows and columns mixed, for rows of two lengths; and only where the model thinks it pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.papers.harness import CONSERVATIVE, GPU, MACHINES, agree, plan, random


def columns_in_the_middle(x):
    centred = x.exp() - x.exp().mean(0)
    return torch.softmax(centred, -1)


def rows_and_columns(x):
    return (x - x.mean(0)) * x.amax(1, keepdim=True), x.sum(0), (x * x).sum(1)


def rows_of_two_lengths(x):
    parts = F.layer_norm(x.view(len(x), 10, -1), (x.shape[1] // 10,))
    return torch.softmax(parts.flatten(1), -1)


def rows_of_two_tensors(x):
    """Both are read by columns of the other."""
    long, short = x, x[:, :100]
    return torch.softmax(long, -1), torch.softmax(short * 2, -1) + long.mean(-1, keepdim=True)


PROGRAMS = (columns_in_the_middle, rows_and_columns, rows_of_two_lengths, rows_of_two_tensors)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_one_kernel(function, name):
    x, machine = random(96, 300), replace(MACHINES[name], barrier_seconds=1e-6)
    found = plan(function, x, machine=machine)
    plain = plan(function, x, machine=machine, options=CONSERVATIVE)
    assert len(found.kernels) == 1 < len(plain.kernels)
    agree(found.run([x]), _listed(function(x.double())), 1e-6)


@pytest.mark.parametrize("function", PROGRAMS[:2], ids=lambda f: f.__name__)
def test_several_where_waiting_takes_longer_than_launching(function):
    x = random(512, 512)
    dear = plan(function, x, machine=replace(GPU, barrier_seconds=1e-4))
    assert len(dear.kernels) > 1 or all(len(kernel.phases) == 1 for kernel in dear.kernels)
    cheap = plan(function, x, machine=replace(GPU, barrier_seconds=0.0))
    assert len(cheap.kernels) == 1


def _listed(results):
    return [results] if isinstance(results, torch.Tensor) else list(results)
