"""What is decided, and what a decision costs.

Backward is a list of kernels, each with the forward values that it needs, and library calls that
read some in place. A value that is saved is loaded once by each kernel that needs it; one that is
not saved is computed again inside the kernel, from values for which the same holds. So the same
three questions that fusion asks (what is written, what is read, what is computed twice) are asked
across the two passes at once: EVT (2024, section 4) asks them of its partitioner, and
FusionStitching (2020, section 4) within a kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Set
from dataclasses import dataclass, replace

HELD = 0.25  # what it costs to hold a byte from one pass to the other, in bytes moved
LAUNCH = 1 << 14  # what a kernel costs that would not be there otherwise, in bytes moved


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that needs no gradient. `sources`: what it can be computed from again, all of them
    earlier items; None: it cannot. `work`: what that costs, in bytes moved. `early`: of what only
    backward needs, what it costs that forward computes it, which then saves it; None: forward needs
    it, or cannot compute it."""

    bytes: int
    sources: tuple[int, ...] | None = None
    work: float = 0.0
    is_given: bool = False  # an argument, in memory whoever needs it
    is_written: bool = False  # forward writes it in any case
    is_saveable: bool = True  # not a view, whose base is saved, nor what forward cannot compute
    early: float | None = None


@dataclass(frozen=True, slots=True)
class SavingProblem:
    """`needs`: of each kernel of backward. `operands`: what library calls of backward read."""

    items: tuple[SavedValue, ...]
    needs: tuple[frozenset[int], ...]
    operands: frozenset[int] = frozenset()
    held: float = HELD

    @property
    def needed(self) -> frozenset[int]:
        return self.operands.union(*self.needs)

    @property
    def early(self) -> frozenset[int]:
        return frozenset(n for n, item in enumerate(self.items) if item.early is not None)

    def with_early(self, numbers: Container[int]) -> SavingProblem:
        """The same where forward computes no more of what it does not need than these."""
        items = [
            item
            if item.early is None or number in numbers
            else replace(item, early=None, is_saveable=False)
            for number, item in enumerate(self.items)
        ]
        return replace(self, items=tuple(items))

    def saving(self, number: int) -> float:
        """What it costs to save an item, apart from loads."""
        item = self.items[number]
        written = 0 if item.is_written else item.bytes
        return self.held * item.bytes + written + (item.early or 0)

    def storing(self, number: int) -> float:
        """What it costs that backward makes an operand: it writes it, in a kernel for it alone."""
        return float(self.items[number].bytes + LAUNCH)


@dataclass(frozen=True, slots=True)
class Decision:
    """`saved`: items, arguments not among them."""

    saved: frozenset[int]
    is_optimal: bool = False  # no decision costs less


def forced(problem: SavingProblem) -> frozenset[int]:
    """What a best decision saves: it is needed, and cannot be made again; or a library call reads
    it, and that backward writes it costs more than that all kernels load it."""
    items = problem.items
    found = {number for number in problem.needed if items[number].sources is None}
    readers = Counter(n for needed in problem.needs for n in reached(problem, needed))
    for number in problem.operands - found:
        dearest = problem.saving(number) + readers[number] * items[number].bytes
        if items[number].is_saveable and dearest <= problem.storing(number):
            found.add(number)
    return frozenset(number for number in found if not items[number].is_given)


def cost(problem: SavingProblem, saved: Set[int]) -> float | None:
    """In bytes moved; None where something is needed that there is no way to have."""
    total = sum(problem.saving(number) for number in saved)
    for needed in problem.needs:
        kernel = cost_of_kernel(problem, needed, saved)
        if kernel is None:
            return None
        total += kernel
    for number in problem.operands:
        if number in saved or problem.items[number].is_given:
            continue
        kernel = cost_of_kernel(problem, {number}, saved)
        if kernel is None:
            return None
        total += kernel + problem.storing(number)
    return total


def cost_of_kernel(problem: SavingProblem, needed: Set[int], saved: Set[int]) -> float | None:
    """What it loads, and what it computes again."""
    total = 0.0
    for number in reached(problem, needed, saved):
        item = problem.items[number]
        if item.is_given or number in saved:
            total += item.bytes
        elif item.sources is None:
            return None
        else:
            total += item.work
    return total


def reached(
    problem: SavingProblem, needed: Set[int], stops: Container[int] = frozenset()
) -> Iterator[int]:
    """`needed`, and what these are made of, and so on, but not what the `stops` are made of."""
    seen, stack = set(needed), list(needed)
    while stack:
        number = stack.pop()
        yield number
        sources = () if number in stops else problem.items[number].sources or ()
        for source in sources:
            if source not in seen:
                seen.add(source)
                stack.append(source)


def held_bytes(problem: SavingProblem, saved: Set[int]) -> int:
    return sum(problem.items[number].bytes for number in saved)
