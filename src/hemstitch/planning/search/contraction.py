"""Contraction of vertices that may not be separated into one vertex, before any search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hemstitch.errors import InternalError
from hemstitch.planning.search.digraph import strongly_connected, topological
from hemstitch.planning.search.search_problem import (
    Oracle,
    PassedValue,
    Pattern,
    PatternPlan,
    PlanningProblem,
)


@dataclass(frozen=True, slots=True)
class Contraction:
    """`problem`: the contracted problem, without `together`. `members`: the original vertices of
    each contracted one."""

    problem: PlanningProblem
    members: tuple[tuple[int, ...], ...]

    def expand(self, pattern: Pattern) -> Pattern:
        return Pattern(self._all(pattern.vertices), self._all(pattern.rematerialised))

    def expand_plan(self, plan: PatternPlan) -> PatternPlan:
        return replace(plan, patterns=tuple(self.expand(p) for p in plan.patterns))

    def expand_oracle(self, oracle: Oracle) -> Oracle:
        """The same callbacks, for patterns of the contracted problem."""
        return Oracle(
            lambda pattern: oracle.legal(self.expand(pattern)),
            lambda pattern: oracle.penalty(self.expand(pattern)),
        )

    def shrink(self, vertices: Iterable[int]) -> frozenset[int]:
        """The contracted vertices that hold any of these."""
        wanted = set(vertices)
        return frozenset(
            number for number, members in enumerate(self.members) if not wanted.isdisjoint(members)
        )

    def _all(self, vertices: frozenset[int]) -> frozenset[int]:
        return frozenset(member for vertex in vertices for member in self.members[vertex])


def contract(problem: PlanningProblem) -> Contraction:
    """Edges in both directions join the vertices of a unit. Each strongly connected component,
    which also has the vertices between them, becomes one vertex."""
    if not problem.together:
        return Contraction(problem, tuple((v,) for v in range(problem.count)))
    after: list[set[int]] = [set() for _ in range(problem.count)]
    for first, second in problem.orders:
        after[first].add(second)
    for unit in problem.together:
        ring = sorted(unit)
        for first, second in zip(ring, [*ring[1:], ring[0]]):
            after[first].add(second)
    members = _in_order(
        [tuple(sorted(component)) for component in strongly_connected(after)], after
    )
    number = {vertex: place for place, component in enumerate(members) for vertex in component}
    for vertex in problem.fixed:
        if len(members[number[vertex]]) > 1:
            raise InternalError(f"vertex {vertex} is fixed and bound to others")
    orders = {(number[a], number[b]) for a, b in problem.orders if number[a] != number[b]}
    contracted = PlanningProblem(
        len(members),
        tuple(sorted(orders)),
        tuple(_renumbered(value, number) for value in problem.values),
        frozenset(number[v] for v in problem.fixed),
        (),
        frozenset(number[v] for v in problem.cheap if len(members[number[v]]) == 1),
        problem.most,
        problem.launch_bytes,
        tuple(problem.size(frozenset(component)) for component in members),
    )
    return Contraction(contracted, tuple(members))


def _in_order(components: list[tuple[int, ...]], after: list[set[int]]) -> list[tuple[int, ...]]:
    """Topological, otherwise by their first vertices."""
    home = {vertex: place for place, component in enumerate(components) for vertex in component}
    successors = [
        {home[w] for v in component for w in after[v]} - {place}
        for place, component in enumerate(components)
    ]
    order = topological(successors, [component[0] for component in components])
    assert order is not None, "components that are strongly connected form no cycles"
    return [components[place] for place in order]


def _renumbered(value: PassedValue, number: dict[int, int]) -> PassedValue:
    maker = None if value.maker is None else number[value.maker]
    readers = dict.fromkeys(number[reader] for reader in value.readers)
    return replace(value, maker=maker, readers=tuple(r for r in readers if r != maker))
