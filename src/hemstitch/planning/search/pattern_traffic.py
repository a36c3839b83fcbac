"""Bytes that patterns move: each value that a pattern reads from outside once, each that it makes
and someone outside loads (or that is kept) once, and a launch.

A plan's traffic is the sum over its patterns: whoever else reads a value, its maker stores it once
(EVT counts a tensor for each internal edge instead, and so credits what has to be stored anyway).
Only values that may be made again break the sum: whether they are stored depends on what all
readers do. They are called *open*, and `Traffic.of` charges them as if nobody made them again.

Library calls move what they move; it is in no sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import chain
from math import inf

from hemstitch.planning.search.problem_graph import PlanningGraph
from hemstitch.planning.search.search_problem import Pattern


class Traffic:
    def __init__(self, graph: PlanningGraph) -> None:
        self.graph = graph
        self.values = graph.problem.values
        self.fixed = graph.problem.fixed

    def of(self, vertices: Collection[int]) -> int:
        """Bytes of one pattern that makes nothing again."""
        graph, bytes_ = self.graph, self.bytes
        read = Counter(chain.from_iterable(map(graph.read.__getitem__, vertices)))
        made = set(chain.from_iterable(map(graph.made.__getitem__, vertices)))
        total = graph.problem.launch_bytes
        total += sum(bytes_[number] for number in read.keys() - made)
        return total + sum(bytes_[n] for n in made if read.get(n, 0) < self.inside[n])

    @cached_property
    def bytes(self) -> list[int]:
        return [value.bytes for value in self.values]

    @cached_property
    def inside(self) -> list[float]:
        """How many readers must be in its maker's pattern for a value not to be stored."""
        readers = self.graph.readers
        return [inf if v.is_kept else readers[number] for number, v in enumerate(self.values)]

    @cached_property
    def alone(self) -> list[int]:
        """Bytes of each vertex as a pattern of its own; library calls count for nothing."""
        vertices = range(self.graph.problem.count)
        return [0 if v in self.fixed else self.of((v,)) for v in vertices]

    def saved(self, vertices: Collection[int]) -> int:
        """Bytes that one pattern moves less than its vertices one by one (FusionStitching 2020,
        equation 3: reduced memory accesses and reduced calls)."""
        alone = self.alone
        return sum(map(alone.__getitem__, vertices)) - self.of(vertices)

    def loads(self, pattern: Pattern) -> set[int]:
        """The values that it reads from memory."""
        computed = pattern.computed
        found = {number for vertex in computed for number in self.graph.read[vertex]}
        return {number for number in found if self.values[number].maker not in computed}

    @cached_property
    def open(self) -> frozenset[int]:
        """Values whose storing depends on who makes what again: they, or what reads them, are
        cheap. Not those that have to be stored anyway."""
        cheap = self.graph.problem.cheap
        return frozenset(
            number
            for number, value in enumerate(self.values)
            if value.maker is not None
            and value.maker not in self.fixed
            and not value.is_kept
            and self.fixed.isdisjoint(value.readers)
            and not cheap.isdisjoint((value.maker, *value.readers))
        )

    def of_settled(self, pattern: Pattern) -> int:
        """Bytes of a pattern, but for storing open values."""
        owned = pattern.vertices
        made = (number for vertex in owned for number in self.graph.made[vertex])
        stored = (n for n in made if n not in self.open and self._leaves(n, owned))
        total = self.graph.problem.launch_bytes + self._bytes(stored)
        return total + self._bytes(self.loads(pattern))

    def of_plan(self, patterns: Iterable[Pattern]) -> int:
        """Bytes of a whole plan, counted from what is loaded: nobody stores what nobody loads."""
        total, loaded = 0, set[int]()
        for pattern in patterns:
            loads = self.loads(pattern)
            loaded |= loads
            if self.fixed.isdisjoint(pattern.vertices):
                total += self.graph.problem.launch_bytes + self._bytes(loads)
        for number, value in enumerate(self.values):
            is_made = value.maker is not None and value.maker not in self.fixed
            if is_made and (value.is_kept or number in loaded):
                total += value.bytes
        return total

    def _leaves(self, number: int, owned: Collection[int]) -> bool:
        value = self.values[number]
        return value.is_kept or any(reader not in owned for reader in value.readers)

    def _bytes(self, numbers: Iterable[int]) -> int:
        return sum(self.bytes[number] for number in numbers)
