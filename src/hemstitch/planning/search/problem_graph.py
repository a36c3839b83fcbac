"""A problem with its edges indexed by vertex, its reachability and its convex hulls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from hemstitch.planning.search.search_problem import PlanningProblem


class PlanningGraph:
    """`after`, `before`: adjacency by must-run-before pairs. `produced`, `read`: the values of each
    vertex. `consumers`: the readers of a vertex's values. `readers`: how many read a value."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        vertices = range(problem.count)
        self.after: list[list[int]] = [[] for _ in vertices]
        self.before: list[list[int]] = [[] for _ in vertices]
        for first, second in dict.fromkeys(problem.orders):
            assert first < second, "vertices are numbered in a topological order"
            self.after[first].append(second)
            self.before[second].append(first)
        self.produced: list[list[int]] = [[] for _ in vertices]
        self.read: list[list[int]] = [[] for _ in vertices]
        self.consumers: list[list[int]] = [[] for _ in vertices]
        self.readers = [len(set(value.readers)) for value in problem.values]
        for number, value in enumerate(problem.values):
            for reader in dict.fromkeys(value.readers):
                self.read[reader].append(number)
            if value.maker is not None:
                self.produced[value.maker].append(number)
                self.consumers[value.maker].extend(value.readers)
        self.consumers = [sorted(set(readers)) for readers in self.consumers]

    @cached_property
    def other_orders(self) -> list[tuple[int, int]]:
        """The pairs that no value implies: rematerialisation does not remove them."""
        return [(a, b) for a, b in self.problem.orders if b not in self.consumers[a]]

    @cached_property
    def below(self) -> list[int]:
        """For each vertex, itself and what must run after it, as the bits of an integer: a square
        of bits, 12 MB for 10,000 vertices."""
        below = [0] * self.problem.count
        for vertex in reversed(range(self.problem.count)):
            bits = 1 << vertex
            for other in self.after[vertex]:
                bits |= below[other]
            below[vertex] = bits
        return below

    @cached_property
    def above(self) -> list[int]:
        """For each vertex, itself and what must run before it."""
        above = [0] * self.problem.count
        for vertex in range(self.problem.count):
            bits = 1 << vertex
            for other in self.before[vertex]:
                bits |= above[other]
            above[vertex] = bits
        return above

    def all_below(self, vertices: Iterable[int]) -> int:
        bits = 0
        for vertex in vertices:
            bits |= self.below[vertex]
        return bits

    def all_above(self, vertices: Iterable[int]) -> int:
        bits = 0
        for vertex in vertices:
            bits |= self.above[vertex]
        return bits

    def hull(self, vertices: frozenset[int]) -> frozenset[int]:
        """The convex hull: with each vertex on a path between two of them, which would have to run
        both after and before their kernel."""
        between = self.all_below(vertices) & self.all_above(vertices)
        if between.bit_count() == len(vertices):
            return vertices
        return frozenset(ones(between))

    def is_convex(self, vertices: frozenset[int]) -> bool:
        return self.hull(vertices) == vertices


def mask_of(vertices: Iterable[int]) -> int:
    mask = 0
    for vertex in vertices:
        mask |= 1 << vertex
    return mask


def ones(mask: int) -> Iterator[int]:
    """Positions of the ones, from low to high."""
    digits = bin(mask)[:1:-1]
    place = digits.find("1")
    while place >= 0:
        yield place
        place = digits.find("1", place + 1)
