"""Memory traffic of patterns: one load for each value that a pattern reads from outside, one store
for each value that it produces and another pattern loads (or that is kept), and a launch.

A plan's traffic is the sum over its patterns: a value is stored once, whatever the number of its
readers. (EVT counts a tensor for each internal edge, and so credits values that must be stored
anyway.) Only rematerialisation breaks the sum: whether such a value is stored depends on all its
readers. These values are called *open*; `Traffic.of` charges them as if nobody rematerialised them.

The traffic of library calls is constant and left out.
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
        """Bytes of one pattern without rematerialisation."""
        graph, bytes_ = self.graph, self.bytes
        read = Counter(chain.from_iterable(map(graph.read.__getitem__, vertices)))
        produced = set(chain.from_iterable(map(graph.produced.__getitem__, vertices)))
        total = graph.problem.launch_bytes
        total += sum(bytes_[number] for number in read.keys() - produced)
        return total + sum(bytes_[n] for n in produced if read.get(n, 0) < self.inside[n])

    @cached_property
    def bytes(self) -> list[int]:
        return [value.bytes for value in self.values]

    @cached_property
    def inside(self) -> list[float]:
        """For each value, how many readers its maker's pattern must hold so that no store is
        needed."""
        readers = self.graph.readers
        return [inf if v.is_kept else readers[number] for number, v in enumerate(self.values)]

    @cached_property
    def alone(self) -> list[int]:
        """Bytes of each vertex as a pattern of its own; 0 for library calls."""
        vertices = range(self.graph.problem.count)
        return [0 if v in self.fixed else self.of((v,)) for v in vertices]

    def saved(self, vertices: Collection[int]) -> int:
        """The traffic that one pattern saves over a kernel for each vertex (FusionStitching 2020,
        equation 3: reduced memory accesses and reduced calls)."""
        alone = self.alone
        return sum(map(alone.__getitem__, vertices)) - self.of(vertices)

    def loads(self, pattern: Pattern) -> set[int]:
        """The values that a pattern loads from memory."""
        computed = pattern.computed
        read = {number for vertex in computed for number in self.graph.read[vertex]}
        return {number for number in read if self.values[number].maker not in computed}

    @cached_property
    def open(self) -> frozenset[int]:
        """Values whose store depends on rematerialisation: their maker or one of their readers is
        cheap, and they need not be stored anyway."""
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
        """Bytes of a pattern, without stores of open values."""
        owned = pattern.vertices
        produced = (number for vertex in owned for number in self.graph.produced[vertex])
        stored = (n for n in produced if n not in self.open and self._leaves(n, owned))
        total = self.graph.problem.launch_bytes + self._bytes(stored)
        return total + self._bytes(self.loads(pattern))

    def of_plan(self, patterns: Iterable[Pattern]) -> int:
        """Bytes of a whole plan. A value that no pattern loads is not stored."""
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
