"""Results that are one constant but for a diagonal: how often they are stored and chosen, and that
they mean the same."""

from __future__ import annotations

import pytest
import torch

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.nodes import Let, Store, statements
from hemstitch.kernel_ir.passes.diagonal_fill import fill_diagonals
from hemstitch.kernel_ir.passes.index_set_splitting import split_loops
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, plans_of, watched, with_kernels

CPU = generic_cpu(2, 8)


def choices(kernel):
    return sum(isinstance(s, Let) and s.op is Op.WHERE for s in statements(kernel))


def stores(kernel):
    return sum(isinstance(s, Store) for s in statements(kernel))


def on_diagonal(x, distance=0):
    columns = torch.arange(x.shape[-1])
    return columns == torch.arange(7)[:, None] + distance


CASES = {  # and how many statements store
    "matrix": (torch.diag_embed, (9,), 2),
    "matrices": (torch.diag_embed, (5, 9), 2),
    "above": (lambda x: torch.diag_embed(x, 2), (5, 9), 2),
    "below": (lambda x: torch.diag_embed(x, -3), (5, 9), 2),
    "below, alone": (lambda x: torch.diag_embed(x, -3), (9,), 2),
    "inner axes": (lambda x: torch.diag_embed(x, 1, 1, 2), (3, 5, 5), 2),
    "outer axes": (lambda x: torch.diag_embed(x, 0, 0, 1), (8, 6), 2),
    "computed": (lambda x: torch.diag_embed(x.sigmoid() + 1), (5, 9), 2),
    "onto others": (lambda x: x.new_full((3, 7, 8), 2.5).diagonal_scatter(x, 1, 1, 2), (3, 7), 2),
    "integers": (lambda x: torch.diag_embed((9 * x).int()), (5, 9), 2),
    "outside": (lambda x: torch.where(on_diagonal(x, 9), x[:, None], 1), (5, 7), 1),
}
OTHERS = {
    "small": (torch.diag_embed, (5, 2)),
    "read at all places": (lambda x: x.where(on_diagonal(x), 0), (7, 7)),
    "added to": (lambda x: torch.diag_embed(x) + 1, (5, 9)),
    "conditions": (lambda x: torch.diag_embed(x > 0.5), (5, 9)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_diagonal_is_stored_on_top(name):
    function, shape, expected = CASES[name]
    x = torch.rand(shape)
    ((graph, plan),) = plans_of(function, (x,), CPU)
    (before,) = (step.stitched.kernel for step in plan.kernels)
    after = with_kernels(plan, lambda kernel: split_loops(fill_diagonals(kernel)))
    (kernel,) = (step.stitched.kernel for step in after.kernels)
    assert stores(kernel) == expected
    assert choices(kernel) < choices(before)
    for order in ((0, 1), (1, 0)):
        (result,) = Simulation({}, CPU.threads, order).run(graph, after, [x])
        torch.testing.assert_close(result, function(x.double()).to(result.dtype))


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name):
    function, shape = OTHERS[name]
    ((_, plan),) = plans_of(function, (torch.rand(shape),), CPU)
    (kernel,) = (step.stitched.kernel for step in plan.kernels)
    assert fill_diagonals(kernel) is kernel


def test_printed():
    """All at once: each has a kernel of its own."""

    def several(x, y, z):
        return (
            *(torch.diag_embed(a, k) for a in (x, y) for k in (-2, 0, 1)),
            *(torch.diag_embed(z, k, 0, 2) for k in (0, 3)),
            *(torch.diag_embed(y.to(t), 1, 1, 2) for t in (torch.half, torch.double, torch.int8)),
        )

    arguments = [torch.randn(70), torch.randn(9, 6), torch.randn(40, 17)]
    compiled, _ = watched(several)
    for result, expected in zip(compiled(*arguments), several(*arguments), strict=True):
        assert torch.equal(result, expected) and result.stride() == expected.stride()


def test_an_argument_that_becomes_its_diagonal():
    """Filled first, it would be gone."""

    def own(x):
        x.copy_(torch.where(torch.eye(6, dtype=torch.bool), x, 0))
        return x + 1

    x = torch.randn(6, 6)
    expected = own(x.clone())
    compiled, _ = watched(own)
    assert torch.equal(compiled(x), expected)
