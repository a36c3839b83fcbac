"""What compiling takes grows as the graph does, whatever its shape: counted, not timed."""

from __future__ import annotations

import pytest
import torch

from hemstitch.kernel_ir.nodes import statements
from hemstitch.stitching.recomputation import Evaluations
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of
from tests.effort import some

SHORT, LONG = 12, 24  # steps; were they inlined, 2 ** 12 values and 2 ** 24
MOST_GROWTH = 2.3  # of twice as many steps


def written_rows(h, x, step):
    h = torch.where(h > 0.5, h - x, h + x) + h.roll(1, 0) * 0.1
    if step % 3 == 0:
        h = h.clone()
        h[step % 4] = h[(step + 1) % 4]
    return h


def stencil(h, x, step):
    return (h.roll(1, 1) + h + h.roll(-1, 1)) / 3


def butterflies(h, x, step):
    even, odd = h[:, 0::2], h[:, 1::2]
    return torch.cat([even + odd, (even - odd) * 0.7], 1)


def chosen(h, x, step):
    return torch.where(h.roll(1, 1) > 0.1, h, h.roll(-1, 0) * 0.5)


def indexed(h, x, step):
    return h * 0.5 + h[:, torch.arange(7, -1, -1)]


def diamonds(h, x, step):
    return h.sin() + h.cos()


def moved(h, x, step):
    return torch.cat([h[:, 3:], h[:, :3].flip(1)], 1)


STEPS = some((written_rows, butterflies), (stencil, chosen, indexed, diamonds, moved))


def unrolled(step, count):
    def function(x):
        h = x
        for number in range(count):
            h = step(h, x, number)
        return h

    return function


@pytest.fixture
def counted(monkeypatch):
    """How often `Evaluations.add` was called."""
    calls = [0]
    add = Evaluations.add

    def counting(self):
        calls[0] += 1
        add(self)

    monkeypatch.setattr(Evaluations, "add", counting)
    return calls


def effort(step, count, calls):
    """Values computed in all trials, and statements of the kernels."""
    calls[0] = 0
    plans = plans_of(unrolled(step, count), (torch.randn(4, 8),), generic_cpu(2, 8))
    kernels = [each.stitched.kernel for _, plan in plans for each in plan.kernels]
    return calls[0], sum(1 for kernel in kernels for _ in statements(kernel))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_twice_the_steps_take_twice_the_effort(step, counted):
    short, long = (effort(step, count, counted) for count in (SHORT, LONG))
    assert all(b <= MOST_GROWTH * a for a, b in zip(short, long)), (short, long)


def test_views_alone_are_materialised(counted):
    """Ones that a reader would look through 2 ** 40 times, were there none in between."""

    def function(x):
        for start in range(40):
            x = x.clone()
            x[:, start % 3 : start % 3 + 4] = x[:, start % 3 + 2 : start % 3 + 6].flip(1)
        return x

    plans = plans_of(function, (torch.randn(4, 8),), generic_cpu(2, 8))
    assert sum(len(plan.kernels) for _, plan in plans) > 1
    assert counted[0] < 1000 * 40
