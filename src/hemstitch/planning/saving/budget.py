"""The cheapest decision that holds no more bytes than it may. Without a bound of its own, that is
as many as if forward computed nothing but what it needs: a mask is saved in place of what it is
made from, or where others have made room, and not beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hemstitch.planning.saving.saving_heuristic import worth
from hemstitch.planning.saving.saving_problem import Decision, SavingProblem, cost, held_bytes

DOUBLINGS = 10
HALVINGS = 4

Decide = Callable[[SavingProblem], Decision]


def within(problem: SavingProblem, share: float, decide: Decide) -> Decision:
    """`share`: of what would be held without a bound."""
    decision = decide(problem)
    early = decision.saved & problem.early
    usual = decide(problem.with_early(())) if early else decision
    most = share * held_bytes(problem, usual.saved)
    if share < 1:
        return _at_a_price(problem, decision, most, decide)
    if held_bytes(problem, decision.saved) > most:
        decision = _with_fewer(problem, decision, most, decide)
    is_good = held_bytes(problem, decision.saved) <= most
    return decision if is_good and _cost(problem, decision) <= _cost(problem, usual) else usual


def _with_fewer(
    problem: SavingProblem, decision: Decision, most: float, decide: Decide
) -> Decision:
    """With those of its early values that spare the most for each byte, while there is room."""
    early = decision.saved & problem.early
    spared = worth(problem, decision.saved, early)
    kept, held = set[int](), held_bytes(problem, decision.saved - early)
    for number in sorted(early, key=lambda n: (-spared[n] / max(1, problem.items[n].bytes), n)):
        size = problem.items[number].bytes
        if held + size <= most:
            kept.add(number)
            held += size
    return decide(problem.with_early(kept))


def _cost(problem: SavingProblem, decision: Decision) -> float:
    found = cost(problem, decision.saved)
    assert found is not None, "a decision leaves nothing that is needed and cannot be had"
    return found


def _at_a_price(
    problem: SavingProblem, decision: Decision, most: float, decide: Decide
) -> Decision:
    """The price of holding a byte is raised until they do not (Lagrange's way to a bound; exact at
    the bounds that some price leads to). If no price is high enough, what the highest one leads to.
    """
    low = high = problem.held
    for _ in range(DOUBLINGS):
        if held_bytes(problem, decision.saved) <= most:
            break
        low, high = high, 2 * high
        decision = decide(replace(problem, held=high))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        other = decide(replace(problem, held=middle))
        if held_bytes(problem, other.saved) <= most:
            decision, high = other, middle
        else:
            low = middle
    return decision
