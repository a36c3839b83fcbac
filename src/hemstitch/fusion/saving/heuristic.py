"""A good decision without a solver: all that kernels need is saved, then single values are given up
for what they are made of, as long as that costs less."""

from __future__ import annotations

from collections.abc import Iterator, Set

from hemstitch.fusion.saving.problem import (
    Decision,
    Problem,
    cost_of_kernel,
    forced,
    reached,
)


def decide(problem: Problem) -> Decision:
    always = forced(problem)
    state = _State(problem, always, {*always, *_saveable(problem, problem.needed, always)})
    changed = True
    while changed:
        changed = False
        for number in sorted(state.saved - always, reverse=True):
            changed |= state.gives_up(number)
    return Decision(frozenset(state.saved))


def _saveable(problem: Problem, wanted: Set[int], saved: Set[int]) -> Iterator[int]:
    """On every way up from `wanted`, the first that can be saved: then as little as possible is
    computed again."""
    items = problem.items
    stops = {n for n, item in enumerate(items) if item.is_saveable or item.is_given} | saved
    for number in reached(problem, wanted, stops):
        if number in stops and number not in saved and not items[number].is_given:
            yield number


class _State:
    """`saved`, and what each kernel costs with it."""

    def __init__(self, problem: Problem, always: frozenset[int], saved: set[int]) -> None:
        self.problem = problem
        self.saved = saved
        self.kernels: list[frozenset[int]] = [
            *problem.needs,
            *(frozenset((number,)) for number in sorted(problem.operands)),
        ]
        self.operand_of = [
            *(None for _ in problem.needs),
            *(number for number in sorted(problem.operands)),
        ]
        self.reading: dict[int, set[int]] = {}  # item -> kernels that could come to need it
        for kernel, needed in enumerate(self.kernels):
            for number in reached(problem, needed, always):
                self.reading.setdefault(number, set()).add(kernel)

    def gives_up(self, number: int) -> bool:
        """Whether `number` is better made again; then it is."""
        sources = self.problem.items[number].sources
        if sources is None:
            return False
        smaller = self.saved - {number}
        extra = set(_saveable(self.problem, set(sources), smaller))
        for other in (smaller, smaller | extra):
            gain = self._gain(other)
            if gain is not None and gain > 0:
                self.saved = other
                return True
        return False

    def _gain(self, other: set[int]) -> float | None:
        gone, added = self.saved - other, other - self.saved
        gain = sum(map(self.problem.saving, gone)) - sum(map(self.problem.saving, added))
        touched = set[int]().union(*(self.reading.get(n, set()) for n in gone | added))
        for kernel in touched:
            before, after = self._kernel(kernel, self.saved), self._kernel(kernel, other)
            if after is None:
                return None
            assert before is not None
            gain += before - after
        return gain

    def _kernel(self, kernel: int, saved: set[int]) -> float | None:
        operand = self.operand_of[kernel]
        if operand is not None and (operand in saved or self.problem.items[operand].is_given):
            return 0.0
        found = cost_of_kernel(self.problem, self.kernels[kernel], saved)
        if found is None or operand is None:
            return found
        return found + self.problem.storing(operand)
