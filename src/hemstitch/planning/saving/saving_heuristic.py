"""A selection of saved activations by local search, without a solver: single values are replaced by
their sources, or saved instead of rematerialised, as long as that lowers the cost."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Set
from dataclasses import dataclass

from hemstitch.planning.saving.saving_problem import (
    Decision,
    SavingProblem,
    cost,
    cost_of_kernel,
    forced,
    reached,
)

SMALL = 16  # times fewer bytes: statistics of rows, beside the rows


def decide(problem: SavingProblem) -> Decision:
    """The better of two local optima: one starts with the least recomputation, one with the
    most."""
    always, needed = forced(problem), problem.needed
    largest = max((problem.items[number].bytes for number in needed), default=0)
    starts = (None, largest // SMALL)
    candidates = [
        _improved(problem, always, {*always, *_saveable(problem, needed, always, dearest)})
        for dearest in starts
    ]
    best = min(candidates, key=lambda saved: _known_cost(problem, saved))
    return Decision(frozenset(best))


def worth(problem: SavingProblem, saved: Set[int], numbers: Set[int]) -> dict[int, float]:
    """By how much the cost grows without each of these values; infinite where another value could
    then not be computed."""
    state = _State(problem, {*saved})
    return {number: -state.gain(state.saved - {number}) for number in numbers}


def _known_cost(problem: SavingProblem, saved: Set[int]) -> float:
    total = cost(problem, saved)
    return math.inf if total is None else total


def _improved(problem: SavingProblem, always: frozenset[int], saved: set[int]) -> set[int]:
    """The local optimum from `saved`: single values are added or removed while the cost falls."""
    state = _State(problem, saved)
    candidates = sorted({*reached(problem, problem.needed, always)} - always, reverse=True)
    changed = True
    while changed:
        changed = False
        for number in candidates:
            changed |= state.changes(number)
    return state.saved


def _saveable(
    problem: SavingProblem, wanted: Set[int], saved: Set[int], dearest: int | None = None
) -> Iterator[int]:
    """On every path up from `wanted`, the first value that can be saved: this minimises
    recomputation. `dearest`: only a value with at most so many bytes, or one that forward writes
    in any case."""
    items, stops = problem.items, _Stops(problem, saved, dearest)
    for number in reached(problem, wanted, stops):
        if number in stops and number not in saved and not items[number].is_given:
            yield number


@dataclass(frozen=True, slots=True)
class _Stops(Container[int]):
    """The values that are saved, given, or can be saved. Lazy, since few items are tested."""

    problem: SavingProblem
    saved: Set[int]
    dearest: int | None

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        item = self.problem.items[number]
        if number in self.saved or item.is_given:
            return True
        is_last = item.is_written or item.sources is None
        is_good = self.dearest is None or is_last or item.bytes <= self.dearest
        return item.is_saveable and is_good


class _State:
    """The saved values, the cost of each kernel, and the kernels that reach each item. Saving an
    item changes only the costs of these kernels."""

    def __init__(self, problem: SavingProblem, saved: set[int]) -> None:
        self.problem = problem
        self.saved = saved
        operands = sorted(problem.operands)
        self.kernels = [*problem.needs, *(frozenset((number,)) for number in operands)]
        self.operand_of = [*(None for _ in problem.needs), *operands]
        self.costs: list[float | None] = [None for _ in self.kernels]
        self.reached: list[Set[int]] = [frozenset() for _ in self.kernels]
        self.readers: dict[int, set[int]] = {}  # of an item: the kernels that reach it
        self._update(range(len(self.kernels)))

    def changes(self, number: int) -> bool:
        """Saves or rematerialises `number`, whichever costs less. Returns whether that is a
        change."""
        others = [(self.gain(other), other) for other in self._others(number)]
        gain, best = max(others, key=lambda pair: pair[0], default=(0.0, self.saved))
        if gain < 1:  # a byte: sums of floats are not exact
            return False
        changed = self._touched(self.saved ^ best)
        self.saved = best
        self._update(changed)
        return True

    def _others(self, number: int) -> Iterator[set[int]]:
        item = self.problem.items[number]
        if number not in self.saved:
            if item.is_saveable and not item.is_given:
                yield self.saved | {number}
        elif item.sources is not None:
            smaller, sources = self.saved - {number}, set(item.sources)
            yield smaller
            yield smaller | {*_saveable(self.problem, sources, smaller)}
            yield smaller | {*_saveable(self.problem, sources, smaller, item.bytes // SMALL)}

    def gain(self, other: set[int]) -> float:
        gone, added = self.saved - other, other - self.saved
        gain = sum(map(self.problem.saving, gone)) - sum(map(self.problem.saving, added))
        for kernel in self._touched(gone | added):
            before, after = self.costs[kernel], self._cost(kernel, other)
            if after is None:
                return -math.inf
            gain += (math.inf if before is None else before) - after
        return gain

    def _touched(self, numbers: Iterable[int]) -> set[int]:
        return set[int]().union(*(self.readers.get(number, set()) for number in numbers))

    def _update(self, kernels: Iterable[int]) -> None:
        """Recomputes the costs and reached items of these kernels for the current `saved`."""
        for kernel in kernels:
            now = set(reached(self.problem, self.kernels[kernel], self.saved))
            for number in self.reached[kernel] - now:
                self.readers[number].discard(kernel)
            for number in now - self.reached[kernel]:
                self.readers.setdefault(number, set()).add(kernel)
            self.reached[kernel] = now
            self.costs[kernel] = self._cost(kernel, self.saved)

    def _cost(self, kernel: int, saved: set[int]) -> float | None:
        operand = self.operand_of[kernel]
        if operand is not None and (operand in saved or self.problem.items[operand].is_given):
            return 0.0
        total = cost_of_kernel(self.problem, self.kernels[kernel], saved)
        if total is None or operand is None:
            return total
        return total + self.problem.storing(operand)
