"""The candidate sets of vertices: convex, without library calls, and each with less traffic than
its vertices as kernels of their own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from hemstitch.planning.search.judge import Candidate, Judge
from hemstitch.planning.search.pattern_reduction import BEST, reduce_patterns, remote_patterns
from hemstitch.planning.search.regions import FOOTPRINT, packs, regions

MOST_CANDIDATES = 20_000  # bounds the memory of a search, and the time of an exact one


def candidates(
    judge: Judge,
    more: Iterable[frozenset[int]] = (),
    best: int = BEST,
    footprint: int = FOOTPRINT,
    most: int = MOST_CANDIDATES,
) -> list[Candidate]:
    """Best first. `more`: further sets to consider. These and the regions are never pruned, so that
    a plan of them can be found."""
    local = reduce_patterns(judge, best)
    certain = _proposed(judge, chain(more, regions(judge)))
    others = chain(
        *local, remote_patterns(judge, local, best), _proposed(judge, packs(judge, footprint))
    )
    ranked = sorted(dict.fromkeys(others), key=lambda candidate: -candidate.score)
    selected = list(dict.fromkeys((*certain, *ranked)))[:most]
    return sorted(selected, key=lambda candidate: -candidate.score)


def _proposed(judge: Judge, sets: Iterable[frozenset[int]]) -> list[Candidate]:
    """The convex sets that save traffic."""
    convex = (vertices for vertices in sets if judge.hull(vertices) == vertices)
    proposed = (judge.candidate(vertices) for vertices in dict.fromkeys(convex))
    return [candidate for candidate in proposed if candidate.score > 0]
