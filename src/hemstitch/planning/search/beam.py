"""Beam search for a plan (FusionStitching 2020, section 5.4): from producers to consumers, each
pattern extends each of the three best plans so far, or does not."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Union

from hemstitch.planning.search.judge import Candidate, Judge
from hemstitch.planning.search.quotient_graph import QuotientGraph
from hemstitch.planning.search.search_problem import Pattern, PatternPlan

WIDTH = 3

Final = Callable[[PatternPlan], float]


@dataclass(frozen=True, slots=True)
class _Beam:
    """Disjoint patterns without a cycle, as a linked list from the last one."""

    score: float
    quotient: QuotientGraph
    chosen: _Chosen | None = None

    def with_candidate(self, candidate: Candidate) -> _Beam | None:
        if not all(self.quotient.is_alone(vertex) for vertex in candidate.vertices):
            return None
        quotient = self.quotient.merged(candidate.vertices)
        if quotient is None:
            return None
        return _Beam(self.score + candidate.score, quotient, _Chosen(candidate, self.chosen))


@dataclass(frozen=True, slots=True)
class _Chosen:
    last: Candidate
    before: _Chosen | None


def _patterns(chosen: _Chosen | None) -> Iterator[Pattern]:
    while chosen is not None:
        yield chosen.last.pattern
        chosen = chosen.before


def search_beams(
    judge: Judge,
    candidates: Iterable[Candidate],
    width: int = WIDTH,
    final: Final | None = None,
) -> PatternPlan:
    """`final`: the cost by which whole plans are compared; by default the bytes that they save."""
    sweep = _BeamSweep(judge, candidates, width)
    for vertex in range(judge.problem.count):
        sweep.visit(vertex)
    plans = [judge.plan(_patterns(beam.chosen)) for beam in sweep.beams]
    valid_plans = [plan for plan in plans if plan is not None]
    assert len(valid_plans) == len(plans), "beams have no cycles"
    return valid_plans[0] if final is None else min(valid_plans, key=final)


_Entry = tuple[float, int, _Beam, Union[Candidate, None]]


class _BeamSweep:
    """The beams so far, best first, and the candidates by their first vertex."""

    def __init__(self, judge: Judge, candidates: Iterable[Candidate], width: int) -> None:
        self.judge = judge
        self.width = width
        self.beams = [_Beam(0.0, QuotientGraph(judge.graph))]
        self.pending: dict[int, dict[Candidate, None]] = {}
        for candidate in candidates:
            self.pending.setdefault(candidate.vertices[0], {})[candidate] = None

    def visit(self, vertex: int) -> None:
        """The best of the beams with and without a candidate that starts at `vertex`. The legality
        check is slow, so it runs only for extensions that would be among the best."""
        heap: list[_Entry] = []
        serial = count()

        def offer(candidate: Candidate | None) -> None:
            more = 0.0 if candidate is None else candidate.score
            for beam in self.beams:
                heapq.heappush(heap, (-beam.score - more, next(serial), beam, candidate))

        for candidate in (None, *self.pending.get(vertex, ())):
            offer(candidate)
        survivors: list[_Beam] = []
        while heap and len(survivors) < self.width:
            _, _, beam, candidate = heapq.heappop(heap)
            longer = beam if candidate is None else beam.with_candidate(candidate)
            if longer is None:
                continue
            if candidate is None or self.judge.is_legal(candidate.pattern):
                survivors.append(longer)
            else:
                for part in self._split(candidate):
                    if part.vertices[0] == vertex:
                        offer(part)
        self.beams = survivors

    def _split(self, refused: Candidate) -> list[Candidate]:
        """Replaces a candidate that cannot be a kernel by its two parts, once. Returns the new
        parts."""
        fresh = []
        if refused in self.pending[refused.vertices[0]]:
            del self.pending[refused.vertices[0]][refused]
            for part in self.judge.parts(refused.vertices):
                known = self.pending.setdefault(part.vertices[0], {})
                if part.score > 0 and part not in known:
                    known[part] = None
                    fresh.append(part)
        return fresh
