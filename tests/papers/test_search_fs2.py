"""FusionStitching 2020: delta evaluator, PatternReduction, remote patterns, beam search."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest

from hemstitch.planning.search.beam import search_beams
from hemstitch.planning.search.candidates import candidates
from hemstitch.planning.search.judge import Candidate, Judge
from hemstitch.planning.search.pattern_reduction import BEST, reduce_patterns, remote_patterns
from hemstitch.planning.search.search import search
from hemstitch.planning.search.search_problem import Oracle, Pattern, PatternPlan, PlanningProblem
from tests.effort import DRAWN
from tests.planning.search.problems import (
    cost,
    executed,
    from_edges,
    ladder,
    least_cost,
    random_problem,
    wish,
)


def of_several(plan: PatternPlan) -> set[frozenset[int]]:
    return {pattern.vertices for pattern in plan.patterns if len(pattern.vertices) > 1}


def saved(judge: Judge, plan: PatternPlan) -> float:
    alone = judge.plan([])
    assert alone is not None
    return judge.cost(alone) - judge.cost(plan)


def test_F2_9_signs_of_the_delta() -> None:
    """A chain gains; so does it with a small penalty, not with one above what it saves."""
    chain = from_edges(3, [(0, 1), (1, 2)])
    whole = frozenset({0, 1, 2})
    assert Judge(chain).score(whole) == 34
    assert Judge(chain, Oracle(penalty=lambda pattern: 30.0)).score(whole) == 4
    punished = Judge(chain, Oracle(penalty=lambda pattern: 40.0))
    assert punished.score(whole) == -6
    assert candidates(punished) == [] and of_several(search_beams(punished, [])) == set()
    assert Judge(chain).score(frozenset({1})) == 0


def test_F2_9_legality_is_asked_only_of_what_would_be_chosen() -> None:
    """The slow question (a trial stitch, with all its lifetimes) is not part of the delta."""
    asked: list[Pattern] = []

    def legal(pattern: Pattern) -> bool:
        asked.append(pattern)
        return True

    judge = Judge(ladder(20), Oracle(legal=legal))
    found = candidates(judge)
    assert len(found) > 50 and asked == []
    plan = search_beams(judge, found)
    assert len(asked) == len(set(asked)) < len(found) / 2
    assert {pattern for pattern in plan.patterns if len(pattern.vertices) > 1} <= set(asked)


# 8 feeds 5, 6 and 7; 5 -> 2, 6 -> 3, 7 -> 4; 2, 3 and 4 feed 1. Here from 0, producers first.
FIGURE_4 = from_edges(8, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 7), (6, 7)])


def test_F2_10_figure_4() -> None:
    judge = Judge(FIGURE_4)
    found = reduce_patterns(judge)
    assert found[0][0].vertices == tuple(range(8))
    for patterns in found:
        assert len(patterns) <= BEST
        assert len({c.vertices for c in patterns}) == len(patterns)
        assert all(judge.graph.is_convex(frozenset(c.vertices)) for c in patterns)
        assert [c.score for c in patterns] == sorted((c.score for c in patterns), reverse=True)
    every = candidates(judge)
    assert len({candidate.vertices for candidate in every}) == len(every)
    assert of_several(search(FIGURE_4, Oracle())) == {frozenset(range(8))}


def test_F2_10_the_figures_own_answers_are_not_convex() -> None:
    """{8,5,2,1}, and two of its three final picks: 8 -> 6 -> 3 -> 1 leaves and comes back."""
    graph = Judge(FIGURE_4).graph
    number = dict(zip((8, 5, 6, 7, 2, 3, 4, 1), range(8)))
    for figure in ((8, 5, 2, 1), (8, 5, 2, 1, 7, 4), (8, 6, 3, 1, 7, 4)):
        vertices = frozenset(number[name] for name in figure)
        assert graph.hull(vertices) == frozenset(range(8))


def calls(action: Callable[[], object]) -> int:
    """Functions called, of Python and of C: a count of work that does not depend on the machine."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("step", [search_beams, reduce_patterns], ids=["beam", "reduction"])
def test_F2_11_work_is_linear_in_the_graph(step: Callable[..., object]) -> None:
    """Ladders of 500 to 4,000 vertices."""
    work = []
    for length in (250, 500, 1000, 2000):
        judge = Judge(ladder(length, most=16))
        found = () if step is reduce_patterns else (candidates(judge),)
        work.append(calls(lambda: step(judge, *found)))  # noqa: B023
    assert all(second <= 2.3 * first for first, second in pairwise(work))


def test_F2_11_a_vertex_with_256_consumers() -> None:
    """Eight times the consumers are some eight times the work, not (1 + k) ** 224 times."""
    few, many = (
        Judge(from_edges(count + 1, [(0, v) for v in range(1, count + 1)])) for count in (32, 256)
    )
    assert calls(lambda: reduce_patterns(many)) < 12 * calls(lambda: reduce_patterns(few))
    best = reduce_patterns(many)[0][0]
    assert len(best.vertices) == 129  # both halves would be more than `most`


def trap() -> Judge:
    """0 -> 1 -> 2 -> 3. The first pattern met, {0, 1}, saves something; {1, 2, 3} saves more."""
    return Judge(from_edges(4, [(0, 1), (1, 2), (2, 3)], (10, 11, 12, 30)))


def test_F2_12_width_one_falls_into_the_trap() -> None:
    judge = trap()
    found = [judge.candidate(frozenset(s)) for s in ({0, 1}, {1, 2, 3})]
    assert of_several(search_beams(judge, found, width=1)) == {frozenset({0, 1})}
    assert of_several(search_beams(judge, found, width=3)) == {frozenset({1, 2, 3})}


def test_F2_12_width_three_is_near_the_best() -> None:
    """Of what the best selection of candidates saves; mean of 200 graphs of up to 14 vertices."""
    shares = []
    for seed in range(200):
        rng = random.Random(seed)
        judge = Judge(random_problem(rng, rng.randint(4, 14)), wish(rng, 1.0))
        found = candidates(judge)
        alone = judge.plan([])
        assert alone is not None
        columns = [*(p for p in alone.patterns), *(c.pattern for c in found)]
        best = judge.cost(alone) - least_cost(judge, columns)
        plan = search_beams(judge, found)
        assert cost(judge, plan.patterns) == judge.cost(plan)
        if best > 0:
            shares.append(saved(judge, plan) / best)
    assert len(shares) > 150
    assert sum(shares) / len(shares) >= 0.95


def test_F2_12_the_last_plans_are_ranked_again() -> None:
    """By a callback that sees whole plans (the latency evaluator), here one that likes many."""
    judge = Judge(from_edges(3, [(0, 1), (1, 2)]))
    found = candidates(judge)
    assert len(search_beams(judge, found).patterns) == 1
    assert len(search_beams(judge, found, final=lambda plan: -len(plan.patterns)).patterns) == 2


def test_F2_12_what_is_refused_gives_way_to_its_parts() -> None:
    """No kernel of more than three: a chain of twelve becomes kernels of up to three, though every
    candidate was longer."""
    oracle = Oracle(legal=lambda pattern: len(pattern.vertices) <= 3)
    judge = Judge(from_edges(12, [(v, v + 1) for v in range(11)]), oracle)
    whole = judge.candidate(frozenset(range(12)))
    plan = search_beams(judge, [whole])
    assert all(judge.is_legal(pattern) for pattern in plan.patterns)
    assert len(plan.patterns) <= 6


def test_F2_13_two_that_would_wait_for_each_other() -> None:
    """Figure 6: A -> B -> C and A -> C. A with C leaves B without a place."""
    problem = from_edges(3, [(0, 1), (1, 2), (0, 2)])
    oracle = Oracle(legal=lambda pattern: pattern.vertices != {0, 1, 2})
    judge = Judge(problem, oracle)
    around = Candidate(1000.0, (0, 2))
    assert of_several(search_beams(judge, [around])) == set()
    assert frozenset({0, 2}) not in of_several(search(problem, oracle))


def test_F2_13_a_ring_of_patterns() -> None:
    """{0, 3} and {1, 2} with 0 -> 1 and 2 -> 3: each convex, together a cycle."""
    judge = Judge(from_edges(4, [(0, 1), (2, 3)]))
    pair = [Candidate(5.0, (0, 3)), Candidate(4.0, (1, 2))]
    assert of_several(search_beams(judge, pair)) == {frozenset({0, 3})}


def test_F2_13_plans_can_run() -> None:
    for seed in range(DRAWN):
        rng = random.Random(seed)
        problem = random_problem(rng, rng.randint(4, 24), fixed=0.05)
        plan = search_beams(judge := Judge(problem, wish(rng)), candidates(judge))
        assert executed(problem, plan.patterns) is not None


def two_chains(*between: tuple[int, int], fixed: frozenset[int] = frozenset()) -> PlanningProblem:
    edges = [(0, 1), (1, 2), (4, 5), (5, 6), *between]
    return from_edges(7, sorted(edges), fixed=fixed | {3})


def test_F2_14_parts_without_a_path_are_one_pattern() -> None:
    problem = two_chains()
    judge = Judge(problem)
    remote = remote_patterns(judge, reduce_patterns(judge))
    assert [candidate.vertices for candidate in remote] == [(0, 1, 2, 4, 5, 6)]
    assert of_several(search(problem, Oracle())) == {frozenset({0, 1, 2, 4, 5, 6})}


def test_F2_14_parts_with_a_library_call_between_are_two() -> None:
    problem = two_chains((2, 3), (3, 4))
    judge = Judge(problem)
    assert remote_patterns(judge, reduce_patterns(judge)) == []
    assert of_several(search(problem, Oracle())) == {frozenset({0, 1, 2}), frozenset({4, 5, 6})}


def test_F2_14_remote_patterns_are_convex_and_gain() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        judge = Judge(random_problem(rng, rng.randint(2, 16)))
        for candidate in remote_patterns(judge, reduce_patterns(judge)):
            vertices = frozenset(candidate.vertices)
            assert judge.graph.is_convex(vertices) and candidate.score > 0
            assert vertices.isdisjoint(judge.problem.fixed)


def test_F2_15_a_refused_merge_is_two_patterns() -> None:
    """Without patterns across blocks, a sum over columns and what reads it may not be one: legality
    says so, and the plan has two."""
    problem = from_edges(4, [(0, 1), (1, 2), (2, 3)])
    oracle = Oracle(legal=lambda pattern: not {1, 2} <= pattern.vertices)
    assert of_several(search(problem, oracle)) == {frozenset({0, 1}), frozenset({2, 3})}


def test_F2_19_never_more_than_without_fusion() -> None:
    """By its own count: whatever is punished or refused, no plan costs more than single vertices,
    nor than the plan that was proposed (that of the greedy planner)."""
    for seed in range(200):
        rng = random.Random(seed)
        problem, oracle = random_problem(rng, rng.randint(2, 16)), wish(rng)
        judge = Judge(problem, oracle)
        assert saved(judge, search(problem, oracle)) >= 0
        pairs = [frozenset(pair) for pair in combinations(range(problem.count), 2)]
        proposed = judge.assembled(Pattern(p) for p in pairs if judge.hull(p) == p)
        found = search(problem, oracle, more=of_several(proposed))
        assert judge.cost(found) <= judge.cost(proposed)
