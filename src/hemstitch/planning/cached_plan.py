"""The cached fusion plan: a plan's decisions as numbers, which rebuild the plan of an equal graph
without a search. `cached_plan_of` encodes a clustering, `clustering_of` decodes one.

The numbers say nothing about how a kernel computes. Clusters are stitched and the plan is verified
in any case, so a wrong cached plan can cost time, but not correctness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from graphlib import CycleError
from typing import TypeVar

from hemstitch.errors import InternalError
from hemstitch.ir.calls import Call
from hemstitch.ir.graph import Graph, Node, call_of, toposort
from hemstitch.ir.ops import is_call, is_elementwise
from hemstitch.matmul.inlining import inline_matmuls
from hemstitch.options import Options
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.trials import Trials
from hemstitch.planning.work import Vertex, Work, is_library_vertex
from hemstitch.stitching.refusal import Refusal

Item = TypeVar("Item")
Labelled = tuple[tuple[str, Refusal], ...]


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """`inlined`: library calls that are inlined matmuls, by their number among the graph's calls.
    `fusion_barriers`, `rematerialised`: nodes, by their number in the graph with inlined matmuls.
    `clusters`: of the vertices of its work. `refusals`: why neighbours were not fused."""

    inlined: tuple[int, ...]
    fusion_barriers: tuple[int, ...]
    rematerialised: tuple[int, ...]
    clusters: tuple[tuple[int, ...], ...]
    refusals: tuple[tuple[str, str, str], ...]

    @property
    def record(self) -> dict[str, object]:
        """As JSON data."""
        return asdict(self)

    @staticmethod
    def parse(record: object) -> CachedPlan | None:
        """Decodes `record`; None for other data."""
        match record:
            case {
                "inlined": [*inlined],
                "fusion_barriers": [*fusion_barriers],
                "rematerialised": [*rematerialised],
                "clusters": [*clusters],
                "refusals": [*refusals],
            } if all(isinstance(entry, list) for entry in (*clusters, *refusals)):
                pass
            case _:
                return None
        numbers = (
            *inlined,
            *fusion_barriers,
            *rematerialised,
            *(n for entry in clusters for n in entry),
        )
        texts = [text for entry in refusals for text in entry]
        is_whole = all(type(number) is int for number in numbers)
        is_whole = is_whole and all(isinstance(text, str) for text in texts)
        if not is_whole or any(len(entry) != 3 for entry in refusals):
            return None
        return CachedPlan(
            *(tuple(inlined), tuple(fusion_barriers), tuple(rematerialised)),
            tuple(map(tuple, clusters)),
            tuple((label, check, why) for label, check, why in refusals),
        )


def cached_plan_of(graph: Graph, clustering: Clustering, refusals: Labelled) -> CachedPlan:
    """`graph`: before its matmuls were inlined."""
    work = clustering.work
    remaining = set(_calls(work.graph))
    number_of = {vertex: number for number, vertex in enumerate(work.vertices)}
    return CachedPlan(
        tuple(number for number, call in enumerate(_calls(graph)) if call not in remaining),
        _positions(work.graph, work.materialisation.fusion_barriers),
        _positions(work.graph, work.rematerialised),
        tuple(tuple(number_of[v] for v in cluster.vertices) for cluster in clustering.clusters),
        tuple((label, refusal.check, refusal.why) for label, refusal in refusals),
    )


def clustering_of(
    graph: Graph, trials: Trials, cached: CachedPlan, options: Options
) -> tuple[Clustering, Labelled]:
    """Raises InternalError where the cached plan does not fit this graph."""
    calls = _calls(graph)
    inlined = set(_select(calls, cached.inlined))
    if inlined:
        library_calls = {call for call in calls if call not in inlined}
        graph = inline_matmuls(graph, trials.machine, library_calls, exact=options.exact).graph
    nodes = toposort(graph.roots)
    fusion_barriers, rematerialised = (
        _select(nodes, numbers) for numbers in (cached.fusion_barriers, cached.rematerialised)
    )
    needs = materialisation(graph, frozenset(fusion_barriers))
    if not all(is_elementwise(node.op) and node not in needs.tensors for node in rematerialised):
        raise InternalError("cached plan: a node cannot be rematerialised")
    work = Work(graph, needs, frozenset(rematerialised))
    merged = [_select(work.vertices, numbers) for numbers in cached.clusters]
    _check(work, merged)
    try:
        clustering = Clustering(
            work, trials, merged, conservative=options.planner == "conservative"
        )
        clustering.settle()
    except CycleError as error:
        raise InternalError("cached plan: clusters form a cycle") from error
    return clustering, tuple((name, Refusal(check, why)) for name, check, why in cached.refusals)


def _check(work: Work, clusters: Sequence[Sequence[Vertex]]) -> None:
    cluster_of = {vertex: n for n, cluster in enumerate(clusters) for vertex in cluster}
    is_partition = len(cluster_of) == len(work.vertices) == sum(map(len, clusters))
    is_apart = all(
        len(cluster) == 1 or not any(map(is_library_vertex, cluster)) for cluster in clusters
    )
    if not is_partition or not is_apart:
        raise InternalError("cached plan: no partition of this graph")
    if any(len({cluster_of[v] for v in unit}) != 1 for unit in work.unit_of.values()):
        raise InternalError("cached plan: a unit of writes is split")


def _calls(graph: Graph) -> list[Call]:
    return [call_of(node) for node in toposort(graph.roots) if is_call(node.op)]


def _positions(graph: Graph, nodes: Iterable[Node]) -> tuple[int, ...]:
    wanted = set(nodes)
    return tuple(n for n, node in enumerate(toposort(graph.roots)) if node in wanted)


def _select(items: Sequence[Item], numbers: Iterable[int]) -> list[Item]:
    picked = []
    for number in numbers:
        if not 0 <= number < len(items):
            raise InternalError("cached plan: a number beyond the graph")
        picked.append(items[number])
    return picked
