"""PatternReduction: the few best patterns that start at each vertex (FusionStitching 2020, section
5.2), and remote patterns, by a virtual vertex that produces for all (section 5.3).

Vertices are visited from the outputs back to the inputs, so that the patterns of all consumers of a
vertex are known. A pattern of the vertex is itself with, for each consumer, one of the consumer's
patterns or nothing. To try all choices would take (1 + k) ** consumers steps; the consumers are
split in halves until one is left, only the best k of each half are kept, and each of one half is
joined with each of the other. So a vertex costs some (1 + k) ** 2 sets for each of its consumers.

The paper drops sets that are not convex as soon as they appear, and then could not reach the best
pattern of its own figure 4: the sets on the way to it leave and come back. Here a half may keep any
set whose convex hull can be a pattern, and the hulls become the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from hemstitch.planning.search.judge import Candidate, Judge

BEST = 3  # k: patterns kept for each vertex, and for each half of its consumers

Vertices = frozenset[int]
Scored = dict[Vertices, float]  # best first


def reduce_patterns(judge: Judge, best: int = BEST) -> list[list[Candidate]]:
    """For each vertex its best patterns with more than one vertex, best first: convex sets, the
    hull of the vertex and some of its descendants."""
    graph, fixed = judge.graph, judge.problem.fixed
    patterns_of: list[list[Candidate]] = [[] for _ in range(judge.problem.count)]
    for vertex in reversed(range(judge.problem.count)):
        if vertex not in fixed:
            consumers = [
                [frozenset((consumer,)), *(frozenset(c.vertices) for c in patterns_of[consumer])]
                for consumer in graph.consumers[vertex]
                if consumer not in fixed
            ]
            sets = _joined(judge, frozenset((vertex,)), consumers, best)
            patterns_of[vertex] = _candidates(judge, sets, best)
    return patterns_of


def remote_patterns(
    judge: Judge, patterns_of: Sequence[Sequence[Candidate]], best: int = BEST
) -> list[Candidate]:
    """Patterns of independent parts: horizontal fusion, and kernels that read the same values.

    The virtual vertex has every vertex as a consumer. Most of their patterns lie within those of
    their producers, so it is joined with the best pattern of each vertex that none before it holds.
    As no pattern holds a whole graph, the best of every half are candidates, not only of the whole.
    """
    consumers: list[list[Vertices]] = []
    covered: set[int] = set()
    for vertex, patterns in enumerate(patterns_of):
        if vertex not in covered and vertex not in judge.problem.fixed:
            lead = patterns[0].vertices if patterns else (vertex,)
            consumers.append([frozenset(lead)])
            covered.update(lead)
    several: list[Vertices] = []
    _joined(judge, frozenset(), consumers, best, several)
    return _candidates(judge, several, len(several))


def _joined(
    judge: Judge,
    vertex: Vertices,
    consumers: Sequence[Sequence[Vertices]],
    best: int,
    several: list[Vertices] | None = None,
) -> Scored:
    """The best unions of `vertex` with patterns of some of these consumers; none for a vertex
    without consumers. `several` collects the unions across two halves."""
    if len(consumers) <= 1:
        return _best(
            judge, (vertex | pattern for patterns in consumers for pattern in patterns), best
        )
    half = len(consumers) // 2
    left = _joined(judge, vertex, consumers[:half], best, several)
    right = _joined(judge, vertex, consumers[half:], best, several)
    unions = _best(judge, (first | second for first in left for second in right), best)
    if several is not None:
        several += unions
    ranked = sorted((left | right | unions).items(), key=lambda item: -item[1])
    return dict(ranked[:best])


def _best(judge: Judge, sets: Iterable[Vertices], best: int) -> Scored:
    """The best of the sets whose hull can be a pattern."""
    fitting = (s for s in dict.fromkeys(sets) if judge.problem.size(s) <= judge.problem.most)
    ranked = sorted(((judge.score(s), s) for s in fitting), key=lambda pair: -pair[0])
    possible = ((s, score) for score, s in ranked if judge.hull(s) is not None)
    return dict(islice(possible, best))


def _candidates(judge: Judge, sets: Iterable[Vertices], best: int) -> list[Candidate]:
    """The hulls of these sets that save traffic."""
    hulls = dict.fromkeys(judge.hull(vertices) for vertices in sets)
    hull_candidates = [judge.candidate(h) for h in hulls if h is not None and len(h) > 1]
    hull_candidates = [candidate for candidate in hull_candidates if candidate.score > 0]
    return sorted(hull_candidates, key=lambda candidate: -candidate.score)[:best]
