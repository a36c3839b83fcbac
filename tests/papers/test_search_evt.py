"""EVT's rows about its integer program, for ours: division, honest flags, equal components, time,
and an objective that counts real traffic."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hemstitch.planning.search.beam import search_beams
from hemstitch.planning.search.candidates import candidates
from hemstitch.planning.search.exact_search import plan_exactly
from hemstitch.planning.search.integer_program import canonical
from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.recomputed_patterns import columns
from hemstitch.planning.search.search_problem import PassedValue, Pattern, PlanningProblem
from hemstitch.planning.search.selection import PatternColumns
from hemstitch.planning.search.solver import Answer
from tests.planning.search.problems import (
    Inline,
    cost,
    executed,
    from_edges,
    least_cost,
    random_problem,
    transformer,
)


class Never:
    """A solver that is always late."""

    def solve(self, program: object, seconds: float) -> Answer | None:
        return None


def beside(problem: PlanningProblem, times: int) -> PlanningProblem:
    """The same graph so many times, without anything in common."""
    count = problem.count
    shifted = [
        PassedValue(v.bytes, None if v.maker is None else v.maker + count * k, readers, v.is_kept)
        for k in range(times)
        for v in problem.values
        for readers in [tuple(reader + count * k for reader in v.readers)]
    ]
    orders = [(a + count * k, b + count * k) for k in range(times) for a, b in problem.orders]
    fixed = frozenset(v + count * k for k in range(times) for v in problem.fixed)
    return PlanningProblem(count * times, tuple(orders), tuple(shifted), fixed, launch_bytes=1)


def partitions(vertices: list[int]) -> Iterator[list[frozenset[int]]]:
    """Every way to put them into groups."""
    if not vertices:
        yield []
        return
    first, *rest = vertices
    for others in partitions(rest):
        yield [frozenset((first,)), *others]
        for place, group in enumerate(others):
            yield [*others[:place], group | {first}, *others[place + 1 :]]


def test_EV_9_the_program_finds_the_best_of_all_partitions() -> None:
    """Every convex set is a column, against every partition whose groups do not wait for each
    other."""
    for seed in range(40):
        judge = Judge(random_problem(random.Random(seed), 7, fixed=0.15))
        every = [group for groups in partitions(list(range(7))) for group in groups]
        usable = {g for g in every if len(g) == 1 or judge.hull(g) == g}
        least = min(
            found
            for groups in partitions(list(range(7)))
            if usable.issuperset(groups)
            and (found := cost(judge, [Pattern(group) for group in groups])) is not None
        )
        rough = search_beams(judge, candidates(judge))
        plan = plan_exactly(judge, map(Pattern, usable), rough, Inline(), 60.0)
        assert plan.is_optimal and cost(judge, plan.patterns) == least, seed


def test_EV_12_division_keeps_the_optimum() -> None:
    """All components as one program, against one program each: 200 graphs."""
    for seed in range(200):
        rng = random.Random(seed)
        judge = Judge(random_problem(rng, rng.randint(6, 14), fixed=0.3))
        found = candidates(judge)
        local = [c for c in found if len(c.vertices) <= 3]  # else all is one component
        every = columns(judge, local)
        plan = plan_exactly(judge, every, search_beams(judge, local), Inline(), 60.0)
        assert plan.is_optimal
        assert cost(judge, plan.patterns) == least_cost(judge, every)
        whole = PatternColumns(judge, every)
        answer = Inline().solve(whole.program(whole.usable), 60.0)
        bound = judge.cost(judge.plan([])) + sum(whole.costs[number] for number in answer.chosen)
        assert bound <= judge.cost(plan)  # without the cuts of longer cycles: no more than a bound


def test_EV_13_a_cycle_through_components_joins_them() -> None:
    """{0, 3} and {1, 2}, 0 -> 1, 2 -> 3 and a ring of three: no column joins their vertices."""
    edges = ((0, 3), (1, 4), (2, 5))
    pairs = [(0, 4), (1, 5), (2, 3)]
    values = (*from_edges(6, edges).values, *(PassedValue(100, None, pair) for pair in pairs))
    judge = Judge(PlanningProblem(6, edges, values))
    every = columns(judge, [judge.candidate(frozenset(pair)) for pair in pairs])
    solver = Inline()
    plan = plan_exactly(judge, every, judge.plan([]), solver, 60.0)
    assert plan.is_optimal and executed(judge.problem, plan.patterns) is not None
    assert cost(judge, plan.patterns) == least_cost(judge, every)
    assert [len(program.costs) for program in solver.asked] == [3, 9]  # equal ones, then all


def test_EV_14_equal_components_are_solved_once() -> None:
    single = from_edges(6, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5)])
    judge = Judge(beside(single, 24))
    found = [c for c in candidates(judge) if len(c.vertices) <= 6 and _is_in_one(c.vertices, 6)]
    solver = Inline()
    plan = plan_exactly(judge, columns(judge, found), judge.plan([]), solver, 60.0)
    assert plan.is_optimal and len(solver.asked) == 1
    assert len(plan.patterns) == 24


def _is_in_one(vertices: tuple[int, ...], count: int) -> bool:
    return vertices[0] // count == vertices[-1] // count


def test_EV_14_twenty_four_layers_need_few_solutions() -> None:
    judge = Judge(transformer(24, launch_bytes=20))
    found = candidates(judge)
    solver = Inline()
    plan = plan_exactly(judge, columns(judge, found), search_beams(judge, found), solver, 300.0)
    assert plan.is_optimal and executed(judge.problem, plan.patterns) is not None
    assert len(set(solver.asked)) == len(solver.asked) <= 24


def test_EV_14_equality_is_of_whole_programs() -> None:
    """One value of another size, and it is another program."""
    chain = [(0, 1), (1, 2)]
    programs = []
    for sizes in ((8, 8, 8), (8, 8, 8), (8, 9, 8)):
        judge = Judge(from_edges(3, chain, sizes))
        found = PatternColumns(judge, columns(judge, candidates(judge)))
        programs.append(canonical(found.program(found.usable))[0])
    assert programs[0] == programs[1] != programs[2]


def test_EV_15_late_solvers_leave_the_fallback() -> None:
    judge = Judge(transformer(2, launch_bytes=20))
    found = candidates(judge)
    fallback = search_beams(judge, found)
    plan = plan_exactly(judge, columns(judge, found), fallback, Never(), 60.0)
    assert not plan.is_optimal
    assert judge.cost(plan) <= judge.cost(fallback)


class Hasty(Inline):
    """Takes what is allowed by itself without a look at the rest: feasible, but not proven."""

    def solve(self, program, seconds: float) -> Answer:
        answer = super().solve(program, seconds)
        return Answer(answer.chosen, False)


def test_EV_15_the_best_so_far_is_taken_if_it_is_better() -> None:
    """And made to run: what closes a cycle, or is no kernel, is left out."""
    judge, fallback = Judge(transformer(1)), None
    found = candidates(judge)
    fallback = judge.plan([])
    plan = plan_exactly(judge, columns(judge, found), fallback, Hasty(), 60.0)
    assert not plan.is_optimal and judge.cost(plan) < judge.cost(fallback)
    assert executed(judge.problem, plan.patterns) is not None


def test_EV_16_the_objective_is_what_a_run_moves() -> None:
    """What is saved for backward is stored whatever reads it, and one load serves all inside."""
    read_twice = PassedValue(8, 0, (1, 2), is_kept=True)
    values = (read_twice, *(PassedValue(8, v, (), True) for v in (1, 2)))
    judge = Judge(PlanningProblem(3, ((0, 1), (0, 2)), values))
    assert judge.score(frozenset({0, 1, 2})) == 16  # two loads; EVT's weights would be 2 * 8 * 2
    assert judge.score(frozenset({1, 2})) == 8
    for seed in range(200):
        rng = random.Random(seed)
        random_judge = Judge(random_problem(rng, rng.randint(2, 14), cheap=0.3 * (seed % 2)))
        found = candidates(random_judge)
        every = columns(random_judge, found)
        fallback = search_beams(random_judge, found)
        plan = plan_exactly(random_judge, every, fallback, Inline(), 60.0)
        moved = executed(random_judge.problem, plan.patterns)
        assert moved == random_judge.cost(plan) <= random_judge.cost(fallback)
