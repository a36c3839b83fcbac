"""Sums by index in the order of where they go: which, and that they are the same to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hemstitch.kernel_ir.passes import sorted_scatter_add as module
from hemstitch.kernel_ir.passes.sorted_scatter_add import sort_scatter_adds
from hemstitch.kernel_ir.printer import show
from hemstitch.kernel_ir.verifier import verify
from hemstitch.planning.plan import KernelStep
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import Simulation, plans_of
from tests.effort import examples

CPU = generic_cpu(2, 16)


def aggregate(x, source, weight, target):
    """Arguments in the order in which a graph has them."""
    return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])


def edges(lines, places, columns):
    source, target = (torch.randint(0, places, (lines,)) for _ in range(2))
    return torch.randn(places, columns), source, torch.rand(lines), target


def kernel_of(function, *arguments):
    ((_, plan),) = plans_of(function, arguments, CPU)
    (step,) = (step for step in plan.steps if isinstance(step, KernelStep))
    return step.stitched.kernel


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="hemstitch", options={"strict": True, "check": True})


@pytest.fixture
def always(monkeypatch):
    numbers = replace(module.CPU, sorted_result_bytes=0, sorted_columns=1)
    monkeypatch.setattr(module, "CPU", numbers)


def test_places_are_rows_and_lines_come_in_their_order(golden):
    kernel = sort_scatter_adds(kernel_of(aggregate, *edges(5000, 2001, 160)), 2)
    verify(kernel)
    golden(show(kernel) + "\n")


def test_the_order_takes_no_more_memory_than_the_lines():
    kernel = kernel_of(aggregate, *edges(5000, 2001, 160))
    assert sort_scatter_adds(kernel, 80).phases != kernel.phases
    assert sort_scatter_adds(kernel, 81).phases == kernel.phases


@pytest.mark.parametrize(
    ("lines", "places", "columns"),
    [(500, 100, 160), (5000, 20000, 64), (0, 4000, 160)],
    ids=["in L2", "narrow", "no lines"],
)
def test_what_gains_nothing_stays(lines, places, columns):
    kernel = kernel_of(aggregate, *edges(lines, places, columns))
    assert sort_scatter_adds(kernel, 2).phases == kernel.phases


def test_symbolic_sizes_stay():
    function = torch.compile(aggregate, backend="hemstitch", dynamic=True, options={"strict": True})
    for lines, places in ((5000, 3000), (100, 2500)):
        arguments = edges(lines, places, 128)
        assert torch.equal(function(*arguments), aggregate(*arguments))


RANDOM = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@RANDOM
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(16, 40), st.integers(1, 5), st.integers()
)
def test_sums_mean_what_they_meant(always, lines, places, columns, tasks, seed):
    """For any number of tasks, also where one has no places; in the interpreter, which finds races
    and what lies outside."""
    torch.manual_seed(seed % 2**63)
    arguments = edges(lines, places, columns)
    ((graph, plan),) = plans_of(aggregate, arguments, CPU)
    steps = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            kernel = sort_scatter_adds(step.stitched.kernel, tasks)
            verify(kernel)
            step = replace(step, stitched=replace(step.stitched, kernel=kernel))
        steps.append(step)
    simulation = Simulation({}, 2, order=(1, 0))
    (found,) = simulation.run(graph, replace(plan, steps=tuple(steps)), arguments)
    exact = aggregate(*(a.double() if a.is_floating_point() else a for a in arguments))
    torch.testing.assert_close(found, exact)


@RANDOM
@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 70), st.integers())
def test_machine_code_gives_eagers_sums_to_the_bit(always, lines, places, columns, seed):
    torch.manual_seed(seed % 2**63)
    arguments = edges(lines, places, columns)
    assert torch.equal(compiled(aggregate)(*arguments), aggregate(*arguments))


def test_large_sums_are_eagers_to_the_bit():
    arguments = edges(30000, 5000, 150)
    assert torch.equal(compiled(aggregate)(*arguments), aggregate(*arguments))


def test_the_gradient_of_an_embedding_is_eagers_to_the_bit():
    weight = torch.randn(4000, 129, requires_grad=True)
    tokens = torch.randint(0, 4000, (7, 300))

    def loss(weight, tokens):
        return torch.nn.functional.embedding(tokens, weight, padding_idx=5).sin().sum()

    found = torch.autograd.grad(compiled(loss)(weight, tokens), weight)
    eager = torch.autograd.grad(loss(weight, tokens), weight)
    torch.testing.assert_close(found, eager)


def test_an_index_outside_is_an_error():
    x, source, weight, target = edges(5000, 2000, 200)
    target[4321] = 2000
    with pytest.raises(RuntimeError, match="index is out of bounds for dimension 0"):
        compiled(aggregate)(x, source, weight, target)
    target[4321], source[17] = 0, -2001
    with pytest.raises(IndexError, match="index is out of bounds for dimension 0"):
        compiled(aggregate)(x, source, weight, target)
