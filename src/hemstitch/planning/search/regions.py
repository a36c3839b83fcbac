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

    The number of library calls on the longest path to a vertex never falls along an edge. A
    connected set with equal numbers is therefore convex: no path between two of its vertices leads
    through a call. Counting the calls after a vertex instead groups vertices that run early and are
    needed late. Both partitions give candidates. A region too large for one pattern is cut in
    topological order, which keeps the pieces convex.
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
    """The most library calls on a path to each vertex, itself included."""
    depths = [0] * len(order)
    for vertex in order:
        depths[vertex] = max((depths[other] for other in before[vertex]), default=0)
        depths[vertex] += vertex in fixed
    return depths


def _connected(graph: PlanningGraph, depth: Sequence[int]) -> Iterator[list[int]]:
    """The weakly connected components of vertices with equal depth."""
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
    """The longest path from each vertex to a sink (2019, section 4.1). Vertices of equal span do
    not depend on each other."""
    span_of = [0] * graph.problem.count
    for vertex in reversed(range(graph.problem.count)):
        span_of[vertex] = max((span_of[other] + 1 for other in graph.after[vertex]), default=0)
    return span_of


def layers(graph: PlanningGraph) -> list[list[int]]:
    """Vertices by span."""
    span = spans(graph)
    by_span: list[list[int]] = [[] for _ in range(max(span, default=-1) + 1)]
    for vertex, layer in enumerate(span):
        by_span[layer].append(vertex)
    return by_span


def packs(
    judge: Judge,
    footprint: int = FOOTPRINT,
    kind: Callable[[int], Hashable] | None = None,
) -> Iterator[frozenset[int]]:
    """Vertices of one layer and one kind, as many as `footprint` bytes allow. `kind`: equal for
    vertices whose loops can be fused; by default, the bytes that a vertex produces."""
    graph = judge.graph
    values = judge.problem.values

    def bytes_produced(vertex: int) -> Hashable:
        return sum(values[number].bytes for number in graph.produced[vertex])

    for layer in layers(graph):
        alike: dict[Hashable, list[int]] = {}
        for vertex in layer:
            if vertex not in judge.problem.fixed:
                alike.setdefault((kind or bytes_produced)(vertex), []).append(vertex)
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
