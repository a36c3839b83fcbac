"""Score and legality of a set of vertices as one pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hemstitch.planning.search.pattern_traffic import Traffic
from hemstitch.planning.search.problem_graph import PlanningGraph
from hemstitch.planning.search.quotient_graph import QuotientGraph, in_order
from hemstitch.planning.search.search_problem import Oracle, Pattern, PatternPlan, PlanningProblem


@dataclass(frozen=True, slots=True)
class Candidate:
    """A convex set of vertices in ascending order, with what it saves as one pattern, in bytes."""

    score: float
    vertices: tuple[int, ...]

    @property
    def pattern(self) -> Pattern:
        return Pattern(frozenset(self.vertices))


class Judge:
    """A problem without `together`, and an oracle whose legality answers are cached."""

    def __init__(self, problem: PlanningProblem, oracle: Oracle | None = None) -> None:
        self.problem = problem
        self.oracle = oracle or Oracle()
        self.graph = PlanningGraph(problem)
        self.traffic = Traffic(self.graph)
        self.verdicts: dict[Pattern, bool] = {}

    def score(self, vertices: frozenset[int]) -> float:
        """FusionStitching 2020, equation 3: bytes saved, less a penalty. A vertex alone saves 0."""
        if len(vertices) == 1:
            return 0.0
        return self.traffic.saved(vertices) - self.oracle.penalty(Pattern(vertices))

    def candidate(self, vertices: frozenset[int]) -> Candidate:
        return Candidate(self.score(vertices), tuple(sorted(vertices)))

    def is_legal(self, pattern: Pattern) -> bool:
        """A single vertex is always legal: there is no smaller pattern to fall back to."""
        if len(pattern.computed) == 1:
            return True
        if pattern not in self.verdicts:
            self.verdicts[pattern] = self.oracle.legal(pattern)
        return self.verdicts[pattern]

    def hull(self, vertices: frozenset[int]) -> frozenset[int] | None:
        """The convex hull; None if it is too large or contains a library call. Then no larger set
        can be a pattern either."""
        if self.problem.size(vertices) > self.problem.most:
            return None
        hull = self.graph.hull(vertices)
        is_too_large = self.problem.size(hull) > self.problem.most
        return None if is_too_large or not self.problem.fixed.isdisjoint(hull) else hull

    def parts(self, vertices: Sequence[int]) -> tuple[Candidate, Candidate]:
        """Splits a convex set in two, each part at least a quarter of it, where the parts score
        best. Both are convex, as intervals of a topological order of a convex set."""
        count = len(vertices)

        def loss(place: int) -> tuple[float, int]:
            first, second = frozenset(vertices[:place]), frozenset(vertices[place:])
            return -self.score(first) - self.score(second), abs(count - 2 * place)

        place = min(range(max(1, count // 4), count - count // 4), key=loss)
        return (
            self.candidate(frozenset(vertices[:place])),
            self.candidate(frozenset(vertices[place:])),
        )

    def assembled(self, patterns: Iterable[Pattern]) -> PatternPlan:
        """A plan of the patterns that are legal, disjoint and acyclic, chosen best first. Patterns
        with rematerialised values are left out: their legality depends on all other patterns."""
        quotient = QuotientGraph(self.graph)
        kept: list[Pattern] = []
        several = [p for p in patterns if len(p.vertices) > 1 and not p.rematerialised]
        for pattern in sorted(several, key=lambda pattern: -self.score(pattern.vertices)):
            is_free = all(quotient.is_alone(vertex) for vertex in pattern.vertices)
            merged = quotient.merged(pattern.vertices) if is_free else None
            if merged is not None and self.is_legal(pattern):
                quotient = merged
                kept.append(pattern)
        plan = self.plan(kept)
        assert plan is not None, "the quotient has no cycles"
        return plan

    def plan(self, patterns: Iterable[Pattern], is_optimal: bool = False) -> PatternPlan | None:
        """These patterns, and each needed vertex outside them as a pattern of its own; None if the
        patterns form a cycle."""
        chosen = list(patterns)
        owned = {vertex for pattern in chosen for vertex in pattern.vertices}
        cheap = self.problem.cheap
        alone = [v for v in range(self.problem.count) if v not in owned and v not in cheap]
        chosen += [Pattern(frozenset((vertex,))) for vertex in alone]
        owned.update(alone)
        values = self.problem.values
        loaded = {n for pattern in chosen for n in self.traffic.loads(pattern)}
        for vertex in sorted(cheap - owned, reverse=True):
            produced = self.graph.produced[vertex]
            if any(values[number].is_kept or number in loaded for number in produced):
                chosen.append(Pattern(frozenset((vertex,))))
                loaded |= self.traffic.loads(chosen[-1])
        order = in_order(self.graph, chosen)
        return None if order is None else PatternPlan(order, is_optimal)

    def cost(self, plan: PatternPlan) -> float:
        """Bytes and penalties of a plan."""
        fixed = self.problem.fixed
        several = [p for p in plan.patterns if len(p.computed) > 1 and p.vertices.isdisjoint(fixed)]
        penalty = sum(self.oracle.penalty(pattern) for pattern in several)
        return self.traffic.of_plan(plan.patterns) + penalty
