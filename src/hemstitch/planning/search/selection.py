"""From columns to a 0/1 program: the selection of patterns with the least cost.

x_P: the pattern P is chosen. Every single vertex is a column too, so that there is always a plan.

    minimise    sum of cost(P) x_P + sum of bytes(u) s_u
    such that   sum of x_P over the P that hold v = 1        for each vertex v; <= 1 for a cheap one
                x_P + x_Q <= 1                               where each must run before the other
                sum of x_P over a longer cycle C <= |C| - 1  added when a solution has one
                x_P <= s_u                                   where P loads the open value u
                s_u <= sum of x_P over the P that hold u's maker

Without cheap vertices there are no open values, and this is weighted set packing: the costs are the
negated scores of the patterns, and s is empty. An open value u has a switch s_u of its own, since
its readers determine whether it is stored: a P that rematerialises its maker does not load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from hemstitch.planning.search.integer_program import IntegerProgram, Row
from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.problem_graph import mask_of
from hemstitch.planning.search.search_problem import Pattern


class PatternColumns:
    """Numbered patterns with their costs and loads. Later ones are banned or added by the
    search."""

    def __init__(self, judge: Judge, patterns: Iterable[Pattern]) -> None:
        self.judge = judge
        self.patterns: list[Pattern] = []
        self.numbers: dict[Pattern, int] = {}
        self.costs: list[float] = []
        self.loads: list[frozenset[int]] = []  # open values that a pattern loads
        self.banned: set[int] = set()
        self.cuts: list[tuple[int, ...]] = []  # columns that are not all chosen
        settled = judge.traffic.of_settled
        # Costs are relative to single vertices, so that they are small.
        self.alone = {
            vertex: settled(Pattern(frozenset((vertex,))))
            for vertex in set(range(judge.problem.count)) - judge.problem.cheap
        }
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: Pattern) -> None:
        if pattern in self.numbers:
            return
        judge = self.judge
        self.numbers[pattern] = len(self.patterns)
        self.patterns.append(pattern)
        cost = judge.traffic.of_settled(pattern)
        cost -= sum(self.alone.get(vertex, 0) for vertex in pattern.vertices)
        penalty = judge.oracle.penalty(pattern) if len(pattern.computed) > 1 else 0.0
        self.costs.append(cost + penalty)
        loads = judge.traffic.loads(pattern) if judge.problem.cheap else frozenset()
        self.loads.append(judge.traffic.open & loads if loads else frozenset())

    @property
    def usable(self) -> list[int]:
        return [number for number in range(len(self.patterns)) if number not in self.banned]

    def program(self, numbers: Sequence[int]) -> IntegerProgram:
        """The program of an independent component of columns. Its columns are these, in this order,
        and then the switches of open values."""
        place = {number: local for local, number in enumerate(numbers)}
        switches = self._switches(numbers)
        switch = {value: len(numbers) + local for local, value in enumerate(switches)}
        values = self.judge.problem.values
        costs = [self.costs[number] for number in numbers]
        costs += [float(values[value].bytes) for value in switches]
        rows = [
            *self._cover(numbers, place),
            *self._storing(numbers, place, switch),
            *self._two_cycles(numbers, place),
        ]
        for cut in self.cuts:
            if place.keys() >= set(cut):
                rows.append(_at_most(len(cut) - 1, (place[number] for number in cut)))
        return IntegerProgram(tuple(costs), tuple(rows))

    def _switches(self, numbers: Sequence[int]) -> list[int]:
        return sorted({value for number in numbers for value in self.loads[number]})

    def _cover(self, numbers: Sequence[int], place: dict[int, int]) -> Iterator[Row]:
        holding: dict[int, list[int]] = {}
        for number in numbers:
            for vertex in self.patterns[number].vertices:
                holding.setdefault(vertex, []).append(place[number])
        open_values, produced = self.judge.traffic.open, self.judge.graph.produced
        for vertex, holders in sorted(holding.items()):
            is_free = vertex in self.judge.problem.cheap and open_values.issuperset(
                produced[vertex]
            )
            yield Row(None if is_free else 1, 1, tuple((local, 1) for local in sorted(holders)))

    def _storing(
        self, numbers: Sequence[int], place: dict[int, int], switch: dict[int, int]
    ) -> Iterator[Row]:
        """One row for all columns that hold a reader, of which at most one is chosen. The
        relaxation is tighter than with a row x_P <= s_u for each of them."""
        cheap, values = self.judge.problem.cheap, self.judge.problem.values
        for value, local in switch.items():
            loading = [number for number in numbers if value in self.loads[number]]
            readers = set(values[value].readers) - cheap
            groups = [[n for n in loading if r in self.patterns[n].vertices] for r in readers]
            groups += [[n] for n in loading if readers.isdisjoint(self.patterns[n].vertices)]
            for group in filter(None, groups):
                terms = [(place[number], 1) for number in group]
                yield Row(None, 0, tuple(sorted([*terms, (local, -1)])))
            maker = values[value].maker
            holding = [place[n] for n in numbers if maker in self.patterns[n].vertices]
            terms = [(column, -1) for column in holding]
            yield Row(None, 0, tuple(sorted([*terms, (local, 1)])))

    def _two_cycles(self, numbers: Sequence[int], place: dict[int, int]) -> Iterator[Row]:
        """Pairs of patterns that form a cycle whatever else is chosen. A vertex that is not cheap
        is computed once, so every pattern with a descendant of it follows its pattern."""
        graph, cheap = self.judge.graph, self.judge.problem.cheap
        several = [number for number in numbers if len(self.patterns[number].computed) > 1]
        several.sort(key=lambda number: min(self.patterns[number].computed))
        masks = {number: mask_of(self.patterns[number].computed) for number in several}
        below = {n: graph.all_below(self.patterns[n].vertices - cheap) for n in several}
        own = {n: mask_of(self.patterns[n].vertices) for n in several}
        for position, first in enumerate(several):
            last = max(self.patterns[first].computed)
            for second in several[position + 1 :]:
                if min(self.patterns[second].computed) > last:
                    break
                if own[first] & own[second]:
                    continue
                if below[first] & masks[second] and below[second] & masks[first]:
                    yield _at_most(1, (place[first], place[second]))

    def links(self) -> Iterator[tuple[int, int]]:
        """Pairs of vertices that belong to one component of the program."""
        for number in self.usable:
            yield from pairwise(sorted(self.patterns[number].computed))
            for value in self.loads[number]:
                maker = self.judge.problem.values[value].maker
                assert maker is not None, "open values are made"
                yield maker, min(self.patterns[number].computed)
        for cut in self.cuts:
            yield from pairwise(min(self.patterns[number].vertices) for number in cut)


def _at_most(bound: int, columns: Iterable[int]) -> Row:
    return Row(None, bound, tuple((column, 1) for column in sorted(columns)))
