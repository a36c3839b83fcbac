"""The optimal plan of given columns, by a 0/1 program, as the abstract of FusionStitching 2019
claims.

Two constraints are lazy, added when a solution violates them: longer cycles of patterns are not
allowed, and a pattern must be one kernel. The program decomposes into independent components. Equal
components are solved once. A cycle through several components joins them into one, so the final
solution is optimal for the whole program.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from hemstitch.planning.search.digraph import cycles
from hemstitch.planning.search.integer_program import IntegerProgram, canonical
from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.quotient_graph import precedence
from hemstitch.planning.search.search_problem import Pattern, PatternPlan
from hemstitch.planning.search.selection import PatternColumns
from hemstitch.planning.search.solver import Answer


class Solves(Protocol):
    """The interface of `Solver`; tests have other implementations."""

    def solve(self, program: IntegerProgram, seconds: float) -> Answer | None: ...


def plan_exactly(
    judge: Judge, patterns: Iterable[Pattern], fallback: PatternPlan, solver: Solves, seconds: float
) -> PatternPlan:
    """`patterns`: the columns, including each vertex alone. `fallback`: the plan to return when no
    better one is known at the time limit."""
    columns = PatternColumns(judge, patterns)
    for pattern in fallback.patterns:
        columns.add(pattern)
    solving = _Solving(columns, solver, time.monotonic() + seconds)
    while True:
        chosen = solving.solution(fallback)
        if not solving.is_optimal:
            return min(fallback, judge.assembled(chosen), key=judge.cost)
        if not solving.cut_cycles(chosen) and not solving.ban_illegal(chosen):
            plan = judge.plan(chosen, is_optimal=True)
            assert plan is not None, "there are no cycles"
            return plan


class _Solving:
    """Solves the columns component by component. `known`: the answers for canonical programs."""

    def __init__(self, columns: PatternColumns, solver: Solves, deadline: float) -> None:
        self.columns = columns
        self.solver = solver
        self.deadline = deadline
        self.known: dict[IntegerProgram, Answer] = {}
        self.is_optimal = True

    def solution(self, fallback: PatternPlan) -> list[Pattern]:
        """The patterns chosen for each component. A component that is not solved in time gets the
        solver's best solution, else the patterns of the fallback."""
        patterns, chosen = self.columns.patterns, list[Pattern]()
        for component in self._components():
            if len(component) == 1:
                chosen.append(patterns[component[0]])
                continue
            answer = self._solved(component)
            self.is_optimal &= answer is not None and answer.is_optimal
            if answer is None:
                inside = {patterns[number] for number in component}
                chosen += [pattern for pattern in fallback.patterns if pattern in inside]
            else:
                chosen += [patterns[component[n]] for n in answer.chosen if n < len(component)]
        return chosen

    def _components(self) -> list[list[int]]:
        """The connected components of columns that share vertices. Equal components have their
        columns in the same order."""
        parent = list(range(self.columns.judge.problem.count))

        def root(vertex: int) -> int:
            while parent[vertex] != vertex:
                parent[vertex] = parent[parent[vertex]]
                vertex = parent[vertex]
            return vertex

        for first, second in self.columns.links():
            parent[root(second)] = root(first)
        components: dict[int, list[int]] = {}
        patterns = self.columns.patterns
        for number in self.columns.usable:
            components.setdefault(root(min(patterns[number].vertices)), []).append(number)
        for component in components.values():
            component.sort(
                key=lambda n: (sorted(patterns[n].vertices), sorted(patterns[n].rematerialised))
            )
        return list(components.values())

    def _solved(self, component: list[int]) -> Answer | None:
        program, order = canonical(self.columns.program(component))
        answer = self.known.get(program)
        if answer is None:
            answer = self.solver.solve(program, self.deadline - time.monotonic())
            if answer is None:
                return None
            self.known[program] = answer
        return Answer(tuple(order[column] for column in answer.chosen), answer.is_optimal)

    def cut_cycles(self, chosen: list[Pattern]) -> bool:
        """Whether the patterns form a cycle. A cut forbids all patterns of each cycle together. It
        leaves out single vertices, since any pattern that holds them closes the same cycle (unless
        that pattern rematerialises the value that it would wait for)."""
        pattern_cycles = cycles(precedence(self.columns.judge.graph, chosen))
        for cycle in pattern_cycles:
            members = [chosen[number] for number in cycle]
            if not self.columns.judge.problem.cheap:
                members = [pattern for pattern in members if len(pattern.vertices) > 1]
            self.columns.cuts.append(tuple(self.columns.numbers[pattern] for pattern in members))
        return bool(pattern_cycles)

    def ban_illegal(self, chosen: list[Pattern]) -> bool:
        """Whether some pattern cannot be a kernel. Its two parts replace it."""
        judge = self.columns.judge
        illegal = [pattern for pattern in chosen if not judge.is_legal(pattern)]
        for pattern in illegal:
            self.columns.banned.add(self.columns.numbers[pattern])
            if len(pattern.vertices) > 1 and not pattern.rematerialised:
                for part in judge.parts(sorted(pattern.vertices)):
                    self.columns.add(part.pattern)
        return bool(illegal)
