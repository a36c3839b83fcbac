"""Products that are added up: when they become one, how its factors lie, what it gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hemstitch.driver.verified import difference
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Node, Op, toposort
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of
from tests.lowered import optimize

STEPS, ROWS, COLUMNS = 6, 64, 48


def matrices(count: int, steps: int = STEPS) -> list[Tensor]:
    sizes = ((steps, ROWS), (steps, COLUMNS))
    return [torch.randn(*size) for _ in range(count) for size in sizes]


def pairs(given):
    return zip(given[::2], given[1::2])


def added(*given):
    """As the gradient of weights is."""
    total = torch.zeros(())
    for number, (x, y) in enumerate(pairs(given)):
        product = x.t() @ y
        total = product if number == 0 else total + product
    return total


def products_of(program, given) -> list[Node]:
    ((graph, _),) = plans_of(program, given, generic_cpu(2, 8))
    nodes = toposort(graph.roots)
    return [node for node in nodes if node.op is Op.MATMUL]


def agrees(program, given) -> None:
    exact = program(*(x.double() for x in given))
    found = torch.compile(program, backend="hemstitch")(*given)
    for ours, wanted in zip(flat(found), flat(exact)):
        assert difference(ours, wanted) < 1e-6


def flat(results):
    return results if isinstance(results, tuple) else (results,)


def with_others(*given):
    """Not all that is added up are products."""
    first, second = added(*given[:4]), added(*given[4:])
    return (first + torch.exp(given[0][:, :1].mean() + torch.ones(ROWS, COLUMNS))) + second


def stacked(*given):
    """The left factors side by side are there anyway."""
    whole = torch.stack([x for x, _ in pairs(given)], 1)
    return whole * 2, added(*given)


def of_products_as_they_are(*given):
    return given[0].exp().t().contiguous() @ given[1] + given[2].t().contiguous() @ given[3]


def with_empty_ones(*given):
    return added(*given, given[0][:0], given[1][:0])


GATHERED = [added, with_others, stacked, of_products_as_they_are, with_empty_ones]


@pytest.mark.parametrize("program", GATHERED, ids=lambda p: p.__name__)
def test_thin_products_become_one(program):
    given = matrices(4)
    (product,) = products_of(program, given)
    assert product.inputs[0].shape[1] == product.inputs[1].shape[0] >= 2 * STEPS
    agrees(program, given)


def test_what_is_stacked_is_not_stacked_again():
    given = matrices(4)
    ((graph, _),) = plans_of(stacked, given, generic_cpu(2, 8))
    joined = [n for n in toposort(graph.roots) if n.op is Op.CONCAT]
    assert sorted(n.shape[-1] for n in joined) == sorted((ROWS, COLUMNS))
    assert {n.shape[:-1] for n in joined} == {(STEPS, 4)}


def read_twice(*given):
    x, y, z, w = given[:4]
    first = x.t() @ y
    return first, first + z.t() @ w


def the_same_twice(*given):
    return given[0].t() @ given[1] + given[0].t() @ given[3]


APART = {"read twice": (read_twice, STEPS), "one factor": (the_same_twice, STEPS)}
APART |= {"thick": (added, 40 * ROWS)}


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name):
    program, steps = APART[name]
    given = matrices(2, steps)
    assert len(products_of(program, given)) == 2
    agrees(program, given)


def test_a_recurrent_weight_has_one_product_for_its_gradient():
    weight = torch.randn(ROWS, ROWS) / ROWS**0.5

    def loss(weight, x):
        h = torch.zeros_like(x[0])
        for step in range(5):
            h = torch.tanh(h @ weight + x[step])
        return h.square().sum()

    def gradient(weight, x):
        (found,) = torch.autograd.grad(loss(weight, x), weight)
        return found

    x = torch.randn(5, STEPS, ROWS)
    graphs = plans_of(loss, (weight.requires_grad_(), x), generic_cpu(2, 8), backward=True)
    calls = [n for n in toposort(graphs[1][0].roots) if n.op is Op.MATMUL]
    assert sum(call.inputs[0].shape[0] == ROWS for call in calls) == 1
    fresh = weight.detach().clone().requires_grad_()
    torch.compile(loss, backend="hemstitch")(fresh, x).backward()
    wanted = gradient(weight.detach().double().requires_grad_(), x.double())
    assert difference(fresh.grad, wanted) < 1e-6


def test_optimizing_again_changes_nothing():
    ((graph, _),) = plans_of(added, matrices(4), generic_cpu(2, 8))
    assert optimize(graph, Builder.after(graph)) is graph
