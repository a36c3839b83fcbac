"""Vertices that may not be separated become one vertex, so that no search needs to know of them."""

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
    """`problem`: without `together`. `members`: what each of its vertices stands for."""

    problem: PlanningProblem
    members: tuple[tuple[int, ...], ...]

    def expand(self, pattern: Pattern) -> Pattern:
        return Pattern(self._all(pattern.vertices), self._all(pattern.rematerialised))

    def expand_plan(self, plan: PatternPlan) -> PatternPlan:
        return replace(plan, patterns=tuple(self.expand(p) for p in plan.patterns))

    def expand_oracle(self, oracle: Oracle) -> Oracle:
        """The same callbacks, asked about patterns of the contracted problem."""
        return Oracle(
            lambda pattern: oracle.legal(self.expand(pattern)),
            lambda pattern: oracle.penalty(self.expand(pattern)),
        )

    def shrink(self, vertices: Iterable[int]) -> frozenset[int]:
        """The contracted vertices that hold any of these."""
        wanted = set(vertices)
        return frozenset(
            number for number, found in enumerate(self.members) if not wanted.isdisjoint(found)
        )

    def _all(self, vertices: frozenset[int]) -> frozenset[int]:
        return frozenset(member for vertex in vertices for member in self.members[vertex])


def contract(problem: PlanningProblem) -> Contraction:
    """What must be together, and what lies between, is what would be a strongly connected component
    were there edges both ways."""
    if not problem.together:
        return Contraction(problem, tuple((v,) for v in range(problem.count)))
    after: list[set[int]] = [set() for _ in range(problem.count)]
    for first, second in problem.orders:
        after[first].add(second)
    for unit in problem.together:
        ring = sorted(unit)
        for first, second in zip(ring, [*ring[1:], ring[0]]):
            after[first].add(second)
    members = _in_order([tuple(sorted(found)) for found in strongly_connected(after)], after)
    number = {vertex: place for place, found in enumerate(members) for vertex in found}
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
        tuple(problem.size(frozenset(found)) for found in members),
    )
    return Contraction(contracted, tuple(members))


def _in_order(components: list[tuple[int, ...]], after: list[set[int]]) -> list[tuple[int, ...]]:
    """Topological, otherwise by their first vertices."""
    home = {vertex: place for place, found in enumerate(components) for vertex in found}
    successors = [
        {home[w] for v in found for w in after[v]} - {place}
        for place, found in enumerate(components)
    ]
    order = topological(successors, [found[0] for found in components])
    assert order is not None, "components that are strongly connected form no cycles"
    return [components[place] for place in order]


def _renumbered(value: PassedValue, number: dict[int, int]) -> PassedValue:
    maker = None if value.maker is None else number[value.maker]
    readers = dict.fromkeys(number[reader] for reader in value.readers)
    return replace(value, maker=maker, readers=tuple(r for r in readers if r != maker))
