"""Random programs, planned for many machines: the kernels mean what the graph means, in any order
of tasks, and so does their machine code."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hemstitch.runtime import interpreter as interpret
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import assert_close, execute, has_halves, simulate
from tests.effort import examples
from tests.lowered import optimize
from tests.programs import Program, arguments_for, hasty

PLANNERS = ("auto", "greedy", "beam", "conservative")
EXACT = 1e-9  # both in float64
ROUNDED = 1e-4
HALVES = 3e-2
SEEDS = st.integers(0, 1 << 40)
COMBINING = ("scanning", "scattering")


def program_of(random, **kinds):
    program = Program(random, steps=random.randint(2, 14), **kinds)
    arguments = arguments_for(program.graph, program.sizes, random.randint(0, 1 << 30))
    return optimize(program.graph, program.builder), program.sizes, arguments


def kinds_of(random):
    return {
        "symbolic": random.random() < 0.3,
        "mutating": random.random() < 0.4,
        "empty": random.random() < 0.05,
    }


@settings(max_examples=examples(120), deadline=None)
@example(6482288)  # halves change places: sums of one block of rows are read in another
@given(SEEDS)
def test_kernels_mean_what_the_graph_means(seed):
    check_kernels(seed)


@pytest.mark.parametrize("loops", COMBINING)
@settings(max_examples=examples(120), deadline=None)
@example(seed=62276)  # of two dominants of one size, one gave its rows to the other
@example(seed=31700)  # a scan got the axis of a smaller one
@given(seed=SEEDS)
def test_so_do_kernels_with_scans_or_sums_by_index(loops, seed):
    check_kernels(seed, **{loops: True})


def check_kernels(seed, **kinds):
    random = Random(seed)
    graph, sizes, arguments = program_of(random, **kinds_of(random), **kinds)
    threads = random.choice((1, 2, 8))
    order = random.sample(range(threads), threads)
    found = simulate(
        graph,
        arguments,
        sizes,
        hasty(generic_cpu(threads, random.choice((4, 8, 16))), random),
        planner=random.choice(PLANNERS),
        order=order,
        alone=random.random() < 0.5,
    )
    assert_close(found, interpret.run(graph, arguments, precise=True), EXACT)


@settings(max_examples=examples(28), deadline=None)
@example(6285)  # a row is gathered from what the same nest has filled for all tasks
@given(SEEDS)
def test_so_do_sums_by_index_with_the_tasks_of_a_gpu(seed):
    """Many add to the same elements, in any order."""
    random = Random(seed)
    graph, sizes, arguments = program_of(random, **kinds_of(random), scattering=True)
    threads = random.choice((1, 2, 8))
    found = simulate(
        *(graph, arguments, sizes, replace(generic_gpu(), threads=threads)),
        order=random.sample(range(threads), threads),
    )
    assert_close(found, interpret.run(graph, arguments, precise=True), EXACT)


def test_machine_code_does_what_the_graph_means(target):
    @settings(max_examples=examples(28), deadline=None, database=None)
    @example(146_944_524_948)  # argmax against the order of memory
    @example(8755)  # one element for all lanes is there for those that do not exist only
    @example(8031)  # the result of all tasks, read beside itself in a padding
    @given(SEEDS)
    def check(seed):
        random = Random(seed)
        graph, _, arguments = program_of(random, **kinds_of(random))
        found = execute(
            graph,
            arguments,
            hasty(generic_cpu(target.threads, target.lanes), random),
            planner=random.choice(PLANNERS),
            alone=random.random() < 0.5,
        )
        assert_close(
            found, interpret.run(graph, arguments), HALVES if has_halves(graph) else ROUNDED
        )

    check()


@pytest.mark.parametrize("loops", COMBINING)
@settings(max_examples=examples(28), deadline=None, database=None)
@given(seed=SEEDS)
def test_so_does_that_of_scans_and_sums_by_index(loops, seed):
    random = Random(seed)
    graph, _, arguments = program_of(random, **kinds_of(random), **{loops: True})
    found = execute(graph, arguments, planner=random.choice(PLANNERS))
    assert_close(found, interpret.run(graph, arguments), HALVES if has_halves(graph) else ROUNDED)
