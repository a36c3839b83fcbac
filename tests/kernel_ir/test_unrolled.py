"""Short reductions in memory: how often that is written, and that they mean the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hemstitch.kernel_ir.nodes import AccumulateInto, Role, statements
from hemstitch.kernel_ir.passes.unrolling import unroll_reductions
from hemstitch.machine.cpu_numbers import CPU as NUMBERS
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, plans_of, watched, with_kernels

CPU = generic_cpu(2, 8)


def added(kernel):
    return sum(isinstance(s, AccumulateInto) for s in statements(kernel))


CASES = {  # and how many statements add to memory, as it is stitched and unrolled
    "sum": (lambda x: x.sum(1), (5, 3, 40), 1, 0),
    "most": (lambda x: x.sum(1), (5, NUMBERS.combined_addends, 40), 1, 0),
    "more": (lambda x: x.sum(1), (5, NUMBERS.combined_addends + 1, 40), 1, 1),
    "one": (lambda x: x.sum(1), (5, 1, 40), 0, 0),
    "extremes": (lambda x: x.amax(1) - x.amin(1), (5, 3, 40), 2, 0),
    "product": (lambda x: x.prod(1), (5, 3, 40), 1, 0),
    "places": (lambda x: x.argmax(1), (5, 3, 40), 1, 1),
    "windows": (lambda x: x.unfold(1, 3, 2).unfold(2, 3, 1).sum((-1, -2)), (5, 9, 20), 1, 0),
    "twice": (lambda x: (x - x.sum(1, keepdim=True)).square().sum(1), (5, 3, 40), 2, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_is_written_once(name):
    function, shape, before, after = CASES[name]
    x = torch.rand(shape)
    ((graph, plan),) = plans_of(function, (x,), CPU)
    (kernel,) = (step.stitched.kernel for step in plan.kernels)
    assert added(kernel) == before
    (kernel,) = (step.stitched.kernel for step in with_kernels(plan, unroll_reductions).kernels)
    assert added(kernel) == after
    for order in ((0, 1), (1, 0)):
        (result,) = Simulation({}, CPU.threads, order).run(
            graph, with_kernels(plan, unroll_reductions), [x]
        )
        torch.testing.assert_close(result, function(x.double()).to(result.dtype))


def test_few_terms_are_added_up_in_single_precision():
    """As exact as eager's, with half of the memory."""

    def widths(terms: int) -> set[int]:
        x = torch.rand(5, terms, 40)
        ((_, plan),) = plans_of(lambda x: x.sum(1, keepdim=True) * x, (x,), CPU)
        (step,) = plan.kernels
        scratch = (b for b in step.stitched.kernel.buffers if b.role is Role.TASK)
        return {b.dtype.bytes for b in scratch}

    assert (widths(16), widths(17)) == ({4}, {8})


def test_results_are_as_exact_as_eagers():
    def several(x, y):
        windows = y.unfold(1, 3, 1).unfold(2, 3, 2)
        return (
            *(x.sum(1), x.mean(1), x.amax(1), x.prod(1), x.var(1), x.softmax(1)),
            *(windows.sum((-1, -2)), windows.amin((-1, -2)), F.avg_pool2d(y[None], 3, 2, 1)),
        )

    compiled, _ = watched(several)
    for shape in ((3, 2, 1), (7, 3, 33), (2, 16, 65), (4, 17, 8), (5, 9, 129)):
        x, y = torch.randn(shape), torch.randn(2, 9, 23)
        x[0, 0, 0], x[-1, -1, -1], y[1, 3, 4], y[0, 1] = torch.nan, torch.inf, -torch.inf, -0.0
        exact = several(x.double(), y.double())
        for ours, eager, right in zip(compiled(x, y), several(x, y), exact, strict=True):
            off, allowed = ((z.double() - right).abs().nan_to_num() for z in (ours, eager))
            scale = right.nan_to_num(posinf=0, neginf=0).abs().max()
            assert off.max() <= 2 * allowed.max() + 1e-7 * scale
            assert torch.equal(ours.isfinite(), eager.isfinite())
            assert ours.stride() == eager.stride()
