"""From a problem to a plan: candidates, then one of three ways to choose among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hemstitch.fusion.search.beam import Final, search_beams
from hemstitch.fusion.search.candidates import candidates
from hemstitch.fusion.search.contract import contract
from hemstitch.fusion.search.exact import Solves, plan_exactly
from hemstitch.fusion.search.greedy import plan_by_layers
from hemstitch.fusion.search.judge import Judge
from hemstitch.fusion.search.problem import Oracle, Pattern, PatternPlan, PlanningProblem
from hemstitch.fusion.search.remake import columns
from hemstitch.fusion.search.solver import Solver

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
    """`more`: sets that others propose; no plan is worse than that of their best. `final`: what the
    last plans of a beam search are compared by, smaller is better; by default bytes and penalties.
    `seconds`: for `exact`, after which the best plan so far has to do."""
    contraction = contract(problem)
    judge = Judge(contraction.problem, contraction.expand_oracle(oracle))
    if method == "layers":
        return contraction.expand_plan(plan_by_layers(judge))
    proposed = [contraction.shrink(vertices) for vertices in more]
    found = candidates(judge, proposed)

    def worth(plan: PatternPlan) -> float:
        return judge.cost(plan) if final is None else final(contraction.expand_plan(plan))

    plans = [search_beams(judge, found, final=worth)]
    if proposed:
        plans.append(judge.assembled(Pattern(vertices) for vertices in proposed))
    plan = min(plans, key=worth)
    if method == "exact":
        every = columns(judge, found)
        if solver is not None:
            plan = plan_exactly(judge, every, plan, solver, seconds)
        else:
            with Solver() as own:
                plan = plan_exactly(judge, every, plan, own, seconds)
    return contraction.expand_plan(plan)
