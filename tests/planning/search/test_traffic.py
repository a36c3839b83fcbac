"""Bytes: by hand, and against a plan that is run value by value."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.recomputed_patterns import columns
from hemstitch.planning.search.search_problem import PassedValue, Pattern, PlanningProblem
from tests.planning.search.problems import executed, from_edges, random_problem, selections


def test_a_chain_saves_what_passes_and_a_launch() -> None:
    """0 -> 1 -> 2, 8 bytes each, a launch for 1: 0 stores 8; 1 loads and stores; 2 too."""
    judge = Judge(from_edges(3, [(0, 1), (1, 2)]))
    assert judge.traffic.alone == [9, 17, 17]
    assert judge.traffic.of({0, 1, 2}) == 9
    assert judge.score(frozenset({0, 1, 2})) == 34
    assert judge.score(frozenset({0, 1})) == 17


def test_a_value_read_outside_is_stored_once_and_loaded_once() -> None:
    judge = Judge(from_edges(4, [(0, 1), (0, 2), (0, 3)]))
    assert judge.traffic.of({0, 1}) == 1 + 8 + 8  # still stores 0, for 2 and 3, and 1
    assert judge.traffic.of({2, 3}) == 1 + 8 + 16  # loads 0 once for both


def test_what_is_kept_is_stored_whoever_reads_it() -> None:
    values = (PassedValue(8, 0, (1,), is_kept=True), PassedValue(8, 1, (), is_kept=True))
    judge = Judge(PlanningProblem(2, ((0, 1),), values))
    assert judge.score(frozenset({0, 1})) == 8  # one load; both stores stay


def test_library_calls_count_for_nothing_but_what_they_read_is_stored() -> None:
    judge = Judge(from_edges(3, [(0, 1), (1, 2)], fixed=frozenset({1})))
    plan = judge.plan([])
    assert plan is not None and judge.cost(plan) == (1 + 8) + (1 + 8 + 8)


def test_nobody_stores_what_all_make_again() -> None:
    """0 reads an argument of 4 bytes and makes 8 that 1 and 2 read."""
    values = (PassedValue(4, None, (0,)), *from_edges(3, [(0, 1), (0, 2)]).values)
    judge = Judge(
        PlanningProblem(3, ((0, 1), (0, 2)), values, cheap=frozenset({0}), launch_bytes=1)
    )
    again = [Pattern(frozenset({v}), frozenset({0})) for v in (1, 2)]
    plan = judge.plan(again)
    assert plan is not None and set(plan.patterns) == set(again)
    assert judge.cost(plan) == 2 * (1 + 4 + 8)
    one = judge.plan(again[:1])
    assert one is not None and len(one.patterns) == 3  # 2 loads what 0 stores
    assert judge.cost(one) == (1 + 4 + 8) + (1 + 4 + 8) + (1 + 8 + 8)


@given(st.integers(0, 10**6))
def test_the_sum_over_patterns_is_what_a_run_moves(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(1, 9))
    judge = Judge(problem)
    blocks = [frozenset({v}) for v in problem.fixed]
    free = [v for v in range(problem.count) if v not in problem.fixed]
    while free:
        size = rng.randint(1, 3)
        blocks.append(frozenset(free[:size]))
        free = free[size:]
    moved = executed(problem, [Pattern(block) for block in blocks])
    total = sum(judge.traffic.of(block) for block in blocks if block.isdisjoint(problem.fixed))
    assert moved in (None, total)


@given(st.integers(0, 10**6))
def test_plans_that_make_values_again_move_what_a_run_moves(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(1, 6), cheap=0.5)
    judge = Judge(problem)
    every = columns(judge, [])
    for chosen in (found for found, _ in zip(selections(problem, every), range(50))):
        moved = executed(problem, chosen)
        if moved is not None:
            assert judge.traffic.of_plan(chosen) == moved


@given(st.integers(0, 10**6))
def test_parts_of_a_convex_set_are_convex(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 10), fixed=0)
    judge = Judge(problem)
    hull = judge.graph.hull(frozenset(rng.sample(range(problem.count), 2)))
    first, second = judge.parts(sorted(hull))
    assert set(first.vertices) | set(second.vertices) == hull
    assert not set(first.vertices) & set(second.vertices)
    assert judge.graph.is_convex(frozenset(first.vertices))
    assert judge.graph.is_convex(frozenset(second.vertices))
