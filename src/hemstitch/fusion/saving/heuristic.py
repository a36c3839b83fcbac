"""A good decision without a solver: all that kernels need is saved, then single values are given up
for what they are made of, as long as that costs less."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

from hemstitch.fusion.saving.problem import (
    Decision,
    Problem,
    cost_of_kernel,
    forced,
    reached,
)

SMALL = 16  # times fewer bytes: statistics of rows, beside the rows


def decide(problem: Problem) -> Decision:
    always = forced(problem)
    state = _State(problem, always, {*always, *_saveable(problem, problem.needed, always)})
    changed = True
    while changed:
        changed = False
        for number in sorted(state.saved - always, reverse=True):
            changed |= state.gives_up(number)
    return Decision(frozenset(state.saved))


def _saveable(
    problem: Problem, wanted: Set[int], saved: Set[int], dearest: int | None = None
) -> Iterator[int]:
    """On every way up from `wanted`, the first that can be saved: then as little as possible is
    computed again. `dearest`: the first that is written anyway, or has no more bytes."""
    items = problem.items

    def is_stop(number: int) -> bool:
        item = items[number]
        is_good = dearest is None or item.is_written or item.bytes <= dearest
        return item.is_given or (item.is_saveable and is_good)

    stops = {number for number in range(len(items)) if is_stop(number)} | saved
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
        item = self.problem.items[number]
        if item.sources is None:
            return False
        smaller, sources = self.saved - {number}, set(item.sources)
        near = set(_saveable(self.problem, sources, smaller))
        far = set(_saveable(self.problem, sources, smaller, item.bytes // SMALL))
        best = max((smaller, smaller | near, smaller | far), key=self._gain)
        if self._gain(best) <= 0:
            return False
        self.saved = best
        return True

    def _gain(self, other: set[int]) -> float:
        gone, added = self.saved - other, other - self.saved
        gain = sum(map(self.problem.saving, gone)) - sum(map(self.problem.saving, added))
        touched = set[int]().union(*(self.reading.get(n, set()) for n in gone | added))
        for kernel in touched:
            before, after = self._kernel(kernel, self.saved), self._kernel(kernel, other)
            if after is None:
                return -math.inf
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
