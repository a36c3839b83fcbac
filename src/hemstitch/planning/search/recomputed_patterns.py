"""Patterns with rematerialised cheap values: further columns for the exact planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hemstitch.planning.search.judge import Candidate, Judge
from hemstitch.planning.search.search_problem import Pattern


def columns(judge: Judge, candidates: Iterable[Candidate]) -> list[Pattern]:
    """Each vertex alone, each candidate, and their variants with rematerialised values."""
    problem = judge.problem
    plain = [Pattern(frozenset((vertex,))) for vertex in range(problem.count)]
    plain += [candidate.pattern for candidate in candidates]
    if not problem.cheap:
        return plain
    patterns = dict.fromkeys(plain)
    for pattern in plain:
        if problem.fixed.isdisjoint(pattern.vertices):
            for own in dict.fromkeys((pattern, _with_cheap_rematerialised(judge, pattern))):
                patterns[own] = None
                patterns |= dict.fromkeys(_with_rematerialised(judge, own))
    return list(patterns)


def _with_cheap_rematerialised(judge: Judge, pattern: Pattern) -> Pattern:
    """The pattern with its cheap vertices rematerialised, so that another pattern may hold them
    too."""
    kept = _stored(judge)
    own = pattern.vertices & judge.problem.cheap - kept
    return Pattern(pattern.vertices - own, own) if own < pattern.vertices else pattern


def _stored(judge: Judge) -> set[int]:
    """Cheap vertices with a value that is stored in every plan."""
    graph, open_values = judge.graph, judge.traffic.open
    return {
        vertex
        for vertex in judge.problem.cheap
        if any(number not in open_values for number in graph.produced[vertex])
    }


def _with_rematerialised(judge: Judge, pattern: Pattern) -> Iterator[Pattern]:
    """Variants of a pattern: with each single cheap value that it loads rematerialised; with all of
    them, as long as the loads do not grow; and with all of them, down to values that are not
    cheap."""
    for maker in sorted(_makers(judge, pattern)):
        yield _with(pattern, maker)
    for is_careful in (True, False):
        grown = _grown(judge, pattern, is_careful)
        if grown != pattern:
            yield grown


def _grown(judge: Judge, pattern: Pattern, is_careful: bool) -> Pattern:
    """Consumers before producers: what a rematerialised vertex reads may be rematerialised as
    well."""
    refused: set[int] = set()
    while makers := _makers(judge, pattern) - refused:
        larger = _with(pattern, max(makers))
        fits = judge.problem.size(larger.computed) <= judge.problem.most
        if fits and (not is_careful or _loaded(judge, larger) <= _loaded(judge, pattern)):
            pattern = larger
        else:
            refused.add(max(makers))
    return pattern


def _makers(judge: Judge, pattern: Pattern) -> set[int]:
    """Cheap vertices outside the pattern that produce a value it loads."""
    values = judge.problem.values
    makers = {values[number].maker for number in judge.traffic.loads(pattern)}
    return {maker for maker in makers if maker is not None and maker in judge.problem.cheap}


def _with(pattern: Pattern, maker: int) -> Pattern:
    return Pattern(pattern.vertices, pattern.rematerialised | {maker})


def _loaded(judge: Judge, pattern: Pattern) -> int:
    return sum(judge.problem.values[number].bytes for number in judge.traffic.loads(pattern))
