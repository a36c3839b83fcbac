"""The cheapest decision within a memory budget. By default the budget is the number of bytes that
are saved when forward computes only the values that it needs itself: a mask may replace its saved
sources, or use bytes that other values no longer need, but may not add to the total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hemstitch.planning.saving.saving_heuristic import worth
from hemstitch.planning.saving.saving_problem import Decision, SavingProblem, cost, held_bytes

DOUBLINGS = 10
HALVINGS = 4

Decide = Callable[[SavingProblem], Decision]


def within(problem: SavingProblem, share: float, decide: Decide) -> Decision:
    """`share`: the budget, as a share of the bytes that are saved without one."""
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
    """With those of its early values that save the most for each byte, while the budget allows."""
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
    total = cost(problem, decision.saved)
    assert total is not None, "a decision provides every value that is needed"
    return total


def _at_a_price(
    problem: SavingProblem, decision: Decision, most: float, decide: Decide
) -> Decision:
    """Lagrangian relaxation of the memory limit: the cost of holding a byte rises until the saved
    bytes fit. The result is optimal where some cost leads to exactly this limit. If no cost is high
    enough, the decision for the highest one is returned."""
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
