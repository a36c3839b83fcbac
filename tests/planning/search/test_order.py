"""Convexity, cycles, orders and contraction, against the definitions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hemstitch.errors import InternalError
from hemstitch.planning.search.contraction import contract
from hemstitch.planning.search.digraph import cycles, strongly_connected, topological
from hemstitch.planning.search.problem_graph import PlanningGraph, mask_of, ones
from hemstitch.planning.search.quotient_graph import QuotientGraph, in_order, precedence
from hemstitch.planning.search.search_problem import Pattern, PlanningProblem
from tests.planning.search.problems import from_edges, random_problem

SEEDS = st.integers(0, 10**6)


def reaches(problem: PlanningProblem, first: int, second: int) -> bool:
    return any(
        a == first and (b == second or reaches(problem, b, second)) for a, b in problem.orders
    )


@given(SEEDS)
def test_hull_is_all_that_lies_between(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(1, 9))
    chosen = frozenset(v for v in range(problem.count) if rng.random() < 0.4)
    between = {
        v
        for v in range(problem.count)
        if any(reaches(problem, a, v) for a in chosen)
        and any(reaches(problem, v, b) for b in chosen)
    }
    assert PlanningGraph(problem).hull(chosen) == chosen | between


@given(SEEDS)
def test_quotient_refuses_exactly_what_closes_a_cycle(seed: int) -> None:
    """However blocks are merged, and merged again, as the order moves under them."""
    rng = random.Random(seed)
    graph = PlanningGraph(random_problem(rng, rng.randint(2, 14)))
    vertices = range(graph.problem.count)
    quotient, blocks = QuotientGraph(graph), [{v} for v in vertices]
    for _ in range(8):
        chosen = rng.sample(vertices, min(len(vertices), rng.randint(2, 4)))
        touched = [block for block in blocks if not block.isdisjoint(chosen)]
        tried = [block for block in blocks if block not in touched] + [set().union(*touched)]
        is_free = in_order(graph, [Pattern(frozenset(block)) for block in tried]) is not None
        merged = quotient.merged(chosen)
        assert (merged is not None) == is_free
        if merged is not None:
            quotient, blocks = merged, tried
        assert all(quotient.place[a] <= quotient.place[b] for a, b in graph.problem.orders)
        assert {frozenset(quotient.at[quotient.place[v]]) for v in vertices} == set(
            map(frozenset, blocks)
        )


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_cycles_are_found_if_there_are_any(edges: list[tuple[int, int]]) -> None:
    after = [{b for a, b in edges if a == vertex and b != vertex} for vertex in range(8)]
    found = cycles(after)
    for cycle in found:
        assert all(b in after[a] for a, b in zip(cycle, [*cycle[1:], cycle[0]]))
    assert (topological(after, range(8)) is None) == bool(found)
    components = list(strongly_connected(after))
    assert sorted(vertex for component in components for vertex in component) == list(range(8))
    place = {v: number for number, component in enumerate(components) for v in component}
    assert all(place[a] <= place[b] for a in range(8) for b in after[a])
    on_cycles = {vertex for cycle in found for vertex in cycle}
    assert on_cycles == {v for component in components if len(component) > 1 for v in component}


def test_bits() -> None:
    assert list(ones(mask_of([70, 3, 0]))) == [0, 3, 70]
    assert list(ones(0)) == []


def test_who_makes_a_value_again_does_not_wait_for_it() -> None:
    graph = PlanningGraph(from_edges(3, [(0, 1), (0, 2)], cheap=frozenset({0})))
    loads = [Pattern(frozenset({0, 1})), Pattern(frozenset({2}))]
    assert precedence(graph, loads) == [{1}, set()]
    remakes = [Pattern(frozenset({0, 1})), Pattern(frozenset({2}), frozenset({0}))]
    assert precedence(graph, remakes) == [set(), set()]


def test_orders_without_data_hold_for_all_who_compute() -> None:
    """0 reads memory that 3 replaces: so must whoever makes 0 again."""
    edges = [(0, 1), (0, 2)]
    problem = from_edges(4, edges, cheap=frozenset({0}))
    graph = PlanningGraph(PlanningProblem(4, (*edges, (0, 3)), problem.values, cheap=problem.cheap))
    patterns = [Pattern(frozenset({0, 1})), Pattern(frozenset({2}), frozenset({0}))]
    assert precedence(graph, [*patterns, Pattern(frozenset({3}))]) == [{2}, {2}, set()]


def test_what_must_be_together_becomes_one_vertex_with_all_between() -> None:
    problem = from_edges(5, [(0, 1), (1, 2), (0, 3), (3, 4)], together=(frozenset({0, 2}),))
    contraction = contract(problem)
    assert contraction.members == ((0, 1, 2), (3,), (4,))
    assert contraction.problem.orders == ((0, 1), (1, 2))
    assert contraction.problem.size(frozenset({0, 1})) == 4
    assert [value.readers for value in contraction.problem.values] == [(1,), (), (), (2,), ()]
    assert contraction.expand(Pattern(frozenset({0, 2}))) == Pattern(frozenset({0, 1, 2, 4}))
    assert contraction.shrink({1, 3}) == {0, 1}


def test_a_library_call_cannot_be_bound() -> None:
    with pytest.raises(InternalError, match="vertex 1 is fixed"):
        together = (frozenset({0, 2}),)
        contract(from_edges(3, [(0, 1), (1, 2)], fixed=frozenset({1}), together=together))


@given(SEEDS)
def test_contraction_keeps_a_topological_order_and_all_vertices(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(1, 12), fixed=0, together=0.3)
    contraction = contract(problem)
    members = contraction.members
    assert sorted(v for found in members for v in found) == list(range(problem.count))
    assert all(a < b for a, b in contraction.problem.orders)
    assert all(any(unit <= set(found) for found in members) for unit in problem.together)
