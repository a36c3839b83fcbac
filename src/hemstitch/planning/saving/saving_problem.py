"""The selection of saved activations as an optimisation problem, and the cost of a decision.

Backward is a list of kernels, each with the forward values that it needs, and library calls that
read some in place. Each kernel loads a saved value once. A value that is not saved is
rematerialised inside the kernel, from values for which the same holds. So the cost model of fusion
(values written, read, and computed twice) covers both passes. EVT (2024, section 4) applies it in
its partitioner, and FusionStitching (2020, section 4) within a kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Set
from dataclasses import dataclass, replace

from hemstitch.machine.cpu_numbers import CPU


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that needs no gradient. `sources`: earlier items from which it can be rematerialised;
    None if it cannot be. `work`: the cost of that, in bytes moved. `early`: for a value that only
    backward needs, the cost of computing it in forward and saving it; None if forward needs it or
    cannot compute it."""

    bytes: int
    sources: tuple[int, ...] | None = None
    work: float = 0.0
    is_given: bool = False  # an argument, in memory in any case
    is_written: bool = False  # forward writes it in any case
    is_saveable: bool = True  # no view (its base is saved), and forward can compute it
    early: float | None = None


@dataclass(frozen=True, slots=True)
class SavingProblem:
    """`needs`: values for each kernel of backward. `operands`: values that library calls of
    backward read."""

    items: tuple[SavedValue, ...]
    needs: tuple[frozenset[int], ...]
    operands: frozenset[int] = frozenset()
    held: float = CPU.held_byte

    @property
    def needed(self) -> frozenset[int]:
        return self.operands.union(*self.needs)

    @property
    def early(self) -> frozenset[int]:
        return frozenset(n for n, item in enumerate(self.items) if item.early is not None)

    def with_early(self, numbers: Container[int]) -> SavingProblem:
        """The same problem, where `numbers` are the only early values that forward may compute."""
        items = [
            item
            if item.early is None or number in numbers
            else replace(item, early=None, is_saveable=False)
            for number, item in enumerate(self.items)
        ]
        return replace(self, items=tuple(items))

    def saving(self, number: int) -> float:
        """The cost of saving an item, apart from loads."""
        item = self.items[number]
        written = 0 if item.is_written else item.bytes
        return self.held * item.bytes + written + (item.early or 0)

    def storing(self, number: int) -> float:
        """The cost of computing an operand in backward: a kernel of its own writes it."""
        return float(self.items[number].bytes + CPU.launch_bytes)


@dataclass(frozen=True, slots=True)
class Decision:
    """`saved`: items, without arguments."""

    saved: frozenset[int]
    is_optimal: bool = False  # proven


def forced(problem: SavingProblem) -> frozenset[int]:
    """Values that an optimal decision saves: those that cannot be rematerialised, and operands of
    library calls for which a kernel in backward costs more than saving them and loading them in
    all kernels."""
    items = problem.items
    forced_items = {number for number in problem.needed if items[number].sources is None}
    readers = Counter(n for needed in problem.needs for n in reached(problem, needed))
    for number in problem.operands - forced_items:
        dearest = problem.saving(number) + readers[number] * items[number].bytes
        if items[number].is_saveable and dearest <= problem.storing(number):
            forced_items.add(number)
    return frozenset(number for number in forced_items if not items[number].is_given)


def cost(problem: SavingProblem, saved: Set[int]) -> float | None:
    """In bytes moved; None where a needed value can be neither loaded nor computed."""
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
    """Bytes that a kernel loads, and the cost of its recomputation. None as for `cost`."""
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
    """`needed` and their transitive sources; the search goes no further at `stops`."""
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
