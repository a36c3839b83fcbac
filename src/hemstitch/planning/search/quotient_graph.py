"""The quotient of a graph by patterns, and whether it is acyclic.

`QuotientGraph` maintains a topological order while patterns are added, so that each addition visits
only the blocks between its own vertices. `precedence` gives the edges between finished patterns,
which may have rematerialised values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hemstitch.planning.search.digraph import topological
from hemstitch.planning.search.problem_graph import PlanningGraph
from hemstitch.planning.search.search_problem import Pattern


class QuotientGraph:
    """Disjoint sets of vertices merged one by one, in a topological order that is kept up to date
    (Pearce and Kelly, "A dynamic topological sort algorithm", 2006; here for merges)."""

    def __init__(self, graph: PlanningGraph) -> None:
        self.graph = graph
        self.place = list(range(graph.problem.count))  # of each vertex's block; places have gaps
        self.at: list[tuple[int, ...]] = [(v,) for v in range(graph.problem.count)]

    def is_alone(self, vertex: int) -> bool:
        return len(self.at[self.place[vertex]]) == 1

    def merged(self, vertices: Collection[int]) -> QuotientGraph | None:
        """With these vertices in one block, or None if that would close a cycle.

        The block moves behind its predecessors that stood after one of its parts, and before its
        successors that stood before one. All of them share out the places that they had. The
        predecessors move only forwards and the successors only backwards, so no other block
        moves.
        """
        places = sorted({self.place[vertex] for vertex in vertices})
        later = self._between(places, self.graph.after)
        if later is None:
            return None
        earlier = self._between(places, self.graph.before)
        assert earlier is not None, "a cycle shows in both directions"
        block = tuple(sorted(v for place in places for v in self.at[place]))
        blocks = [*(self.at[place] for place in sorted(earlier)), block]
        blocks += [()] * (len(places) - 1)
        blocks += [self.at[place] for place in sorted(later)]
        copied = QuotientGraph.__new__(QuotientGraph)
        copied.graph, copied.place, copied.at = self.graph, self.place.copy(), self.at.copy()
        for place, block in zip(sorted({*places, *earlier, *later}), blocks):
            copied.at[place] = block
            for vertex in block:
                copied.place[vertex] = place
        return copied

    def _between(self, places: Sequence[int], edges: Sequence[Sequence[int]]) -> set[int] | None:
        """The places of other blocks, between the first and the last of `places`, that edges reach
        from `places`; None if edges lead back to one of `places`."""
        inside, first, last = set(places), places[0], places[-1]
        between: set[int] = set()
        work = list(places)
        while work:
            place = work.pop()
            for vertex in self.at[place]:
                for neighbour in edges[vertex]:
                    target = self.place[neighbour]
                    if target in inside:
                        if place not in inside:
                            return None
                    elif first < target < last and target not in between:
                        between.add(target)
                        work.append(target)
        return between


def precedence(graph: PlanningGraph, patterns: Sequence[Pattern]) -> list[set[int]]:
    """For each pattern, the numbers of its successors. A reader of a value that it does not compute
    follows the pattern that stores it. Every other order holds for all patterns that compute the
    two vertices."""
    owner = {v: number for number, pattern in enumerate(patterns) for v in pattern.vertices}
    computing: dict[int, list[int]] = {}
    after: list[set[int]] = [set() for _ in patterns]
    for number, pattern in enumerate(patterns):
        computed = pattern.computed
        for vertex in computed:
            computing.setdefault(vertex, []).append(number)
            for value in graph.read[vertex]:
                maker = graph.problem.values[value].maker
                if maker is not None and maker not in computed:
                    after[owner[maker]].add(number)
    for first, second in graph.other_orders:
        for earlier in computing.get(first, ()):
            after[earlier].update(n for n in computing.get(second, ()) if n != earlier)
    return after


def in_order(graph: PlanningGraph, patterns: Sequence[Pattern]) -> tuple[Pattern, ...] | None:
    """The patterns in an order in which they can run, otherwise by their first vertices; None if
    there is a cycle."""
    keys = [min(pattern.vertices) for pattern in patterns]
    order = topological(precedence(graph, patterns), keys)
    return None if order is None else tuple(patterns[number] for number in order)
