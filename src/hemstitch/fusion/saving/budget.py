"""The cheapest decision that holds no more bytes than it may: the price of holding a byte is raised
until it does (Lagrange's way to a bound; exact at the bounds that some price leads to)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hemstitch.fusion.saving.problem import Decision, Problem, held_bytes

DOUBLINGS = 10
HALVINGS = 4

Decide = Callable[[Problem], Decision]


def within(problem: Problem, share: float, decide: Decide) -> Decision:
    """`share`: of what would be held without a bound. If no price is high enough, what the highest
    one leads to."""
    decision = decide(problem)
    if share >= 1:
        return decision
    most = share * held_bytes(problem, decision.saved)
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
