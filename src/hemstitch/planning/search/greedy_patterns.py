"""The greedy planner of FusionStitching's predecessor (2018, algorithm 1): from each root, layer by
layer towards the producers, with a rule for giving up that avoids cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hemstitch.planning.search.judge import Judge
from hemstitch.planning.search.regions import layers
from hemstitch.planning.search.search_problem import Pattern, PatternPlan


def plan_by_layers(judge: Judge) -> PatternPlan:
    """Layers with a library call cut the graph: only vertices between two of them are fused."""
    chosen: list[frozenset[int]] = []
    for region in _between_calls(judge):
        taken: set[int] = set()
        for number, layer in enumerate(region):
            for root in layer:
                if root not in taken:
                    fused = _subgraph(judge, root, region[number:])
                    taken |= fused
                    chosen.append(fused)
    plan = judge.plan(Pattern(fused) for fused in chosen if len(fused) > 1)
    assert plan is not None, "vertices that were given up prevent cycles"
    return plan


def _between_calls(judge: Judge) -> Iterator[list[list[int]]]:
    region: list[list[int]] = []
    for layer in layers(judge.graph):
        if judge.problem.fixed.isdisjoint(layer):
            region.append(layer)
        else:
            yield region
            region = []
    yield region


def _subgraph(judge: Judge, root: int, region: Sequence[Sequence[int]]) -> frozenset[int]:
    """The root and what feeds it alone. A vertex with a user that was given up is given up too, or
    the kernel would have to run both before and after that user. So are the root's neighbours in
    its layer, of which the paper does not speak: two roots that each take a producer of both would
    wait for each other. Vertices of earlier kernels are given up like all others."""
    fused, given_up = frozenset((root,)), set(region[0]) - {root}
    for layer in region[1:]:
        for vertex in layer:
            larger = fused | {vertex}
            users = judge.graph.after[vertex]
            consistent = (
                given_up.isdisjoint(users)
                and not fused.isdisjoint(judge.graph.consumers[vertex])
                and judge.problem.size(larger) <= judge.problem.most
                and judge.is_legal(Pattern(larger))
            )
            if consistent:
                fused = larger
            else:
                given_up.add(vertex)
    return fused
