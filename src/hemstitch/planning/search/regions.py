"""Candidates that need no search: AStitch's regions between library calls, and the packs and layers
of FusionStitching 2019."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.problem_graph import PlanningGraph

FOOTPRINT = 1 << 20  # bytes that the vertices of one pack read and write: "kernels below 10 us"


def regions(judge: Judge) -> Iterator[frozenset[int]]:
    """Largest connected sets between library calls (AStitch, section 3: "connected components of
    memory-intensive operators that are convex").

    The number of library calls on the longest way to a vertex never falls along an edge. What is
    connected and has the same number is therefore convex: no way between two of them leads through
    a call. To count the calls that follow instead groups what runs early but is needed late; both
    are offered. What is too large for one pattern is cut in the order of the vertices, which keeps
    the pieces convex.
    """
    graph, problem = judge.graph, judge.problem
    order = range(problem.count)
    for depth in (
        _calls(order, graph.before, problem.fixed),
        _calls(order[::-1], graph.after, problem.fixed),
    ):
        for region in _connected(graph, depth):
            yield from _pieces(judge, region)


def _calls(
    order: Sequence[int], before: Sequence[Sequence[int]], fixed: frozenset[int]
) -> list[int]:
    """The most library calls on a way to each vertex, itself included."""
    found = [0] * len(order)
    for vertex in order:
        found[vertex] = max((found[other] for other in before[vertex]), default=0)
        found[vertex] += vertex in fixed
    return found


def _connected(graph: PlanningGraph, depth: Sequence[int]) -> Iterator[list[int]]:
    """Vertices of one depth that edges connect, whichever way they point."""
    fixed, seen = graph.problem.fixed, set(graph.problem.fixed)
    for start in range(graph.problem.count):
        if start in seen:
            continue
        region, seen = [start], seen | {start}
        for vertex in region:
            for other in (*graph.after[vertex], *graph.before[vertex]):
                if other not in seen and other not in fixed and depth[other] == depth[start]:
                    seen.add(other)
                    region.append(other)
        yield sorted(region)


def _pieces(judge: Judge, vertices: Sequence[int]) -> Iterator[frozenset[int]]:
    piece: list[int] = []
    for vertex in vertices:
        is_full = judge.problem.size(frozenset((*piece, vertex))) > judge.problem.most
        if piece and is_full:
            yield frozenset(piece)
            piece = []
        piece.append(vertex)
    yield frozenset(piece)


def spans(graph: PlanningGraph) -> list[int]:
    """How far each vertex is from the end (2019, section 4.1): 0 if nothing follows, else one more
    than the furthest that follows. Vertices of equal span do not depend on each other."""
    found = [0] * graph.problem.count
    for vertex in reversed(range(graph.problem.count)):
        found[vertex] = max((found[other] + 1 for other in graph.after[vertex]), default=0)
    return found


def layers(graph: PlanningGraph) -> list[list[int]]:
    """Vertices by span."""
    span = spans(graph)
    found: list[list[int]] = [[] for _ in range(max(span, default=-1) + 1)]
    for vertex, layer in enumerate(span):
        found[layer].append(vertex)
    return found


def packs(
    judge: Judge,
    footprint: int = FOOTPRINT,
    kind: Callable[[int], Hashable] | None = None,
) -> Iterator[frozenset[int]]:
    """Vertices of one layer and one kind, as many as `footprint` bytes allow. `kind`: what loops
    alike; by default, what makes as many bytes."""
    graph = judge.graph
    values = judge.problem.values

    def made(vertex: int) -> Hashable:
        return sum(values[number].bytes for number in graph.made[vertex])

    for layer in layers(graph):
        alike: dict[Hashable, list[int]] = {}
        for vertex in layer:
            if vertex not in judge.problem.fixed:
                alike.setdefault((kind or made)(vertex), []).append(vertex)
        for vertices in alike.values():
            yield from _filled(judge, vertices, footprint)


def _filled(judge: Judge, vertices: Sequence[int], footprint: int) -> Iterator[frozenset[int]]:
    alone, launch = judge.traffic.alone, judge.problem.launch_bytes
    pack: list[int] = []
    used = 0
    for vertex in vertices:
        bytes_ = alone[vertex] - launch
        is_full = judge.problem.size(frozenset((*pack, vertex))) > judge.problem.most
        if pack and (is_full or used + bytes_ > footprint):
            yield frozenset(pack)
            pack, used = [], 0
        pack.append(vertex)
        used += bytes_
    yield frozenset(pack)
