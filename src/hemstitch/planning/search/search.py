"""From a problem to a plan: candidate patterns, then one of three search methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hemstitch.planning.search.beam import Final, search_beams
from hemstitch.planning.search.candidates import candidates
from hemstitch.planning.search.contraction import contract
from hemstitch.planning.search.exact_search import Solves, plan_exactly
from hemstitch.planning.search.greedy_patterns import plan_by_layers
from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.recomputed_patterns import columns
from hemstitch.planning.search.search_problem import Oracle, Pattern, PatternPlan, PlanningProblem
from hemstitch.planning.search.solver import Solver

Method = Literal["layers", "beam", "exact"]


def search(
    problem: PlanningProblem,
    oracle: Oracle,
    method: Method = "beam",
    more: Iterable[frozenset[int]] = (),
    final: Final | None = None,
    seconds: float = 60.0,
    solver: Solves | None = None,
) -> PatternPlan:
    """`more`: further sets of vertices to consider; the result is no worse than a plan of these.
    `final`: the cost by which the last plans of a beam search are compared; by default bytes and
    penalties. `seconds`: the time limit of `exact`, which then returns its best plan so far."""
    contraction = contract(problem)
    judge = Judge(contraction.problem, contraction.expand_oracle(oracle))
    if method == "layers":
        return contraction.expand_plan(plan_by_layers(judge))
    proposed = [contraction.shrink(vertices) for vertices in more]
    candidate_patterns = candidates(judge, proposed)

    def worth(plan: PatternPlan) -> float:
        return judge.cost(plan) if final is None else final(contraction.expand_plan(plan))

    plans = [search_beams(judge, candidate_patterns, final=worth)]
    if proposed:
        plans.append(judge.assembled(Pattern(vertices) for vertices in proposed))
    plan = min(plans, key=worth)
    if method == "exact":
        every = columns(judge, candidate_patterns)
        if solver is not None:
            plan = plan_exactly(judge, every, plan, solver, seconds)
        else:
            with Solver() as own:
                plan = plan_exactly(judge, every, plan, own, seconds)
    return contraction.expand_plan(plan)
