"""What planning decided, as numbers. With it the same plan is made again without looking for it:
`decisions_of` a clustering, `clustering_of` decisions.

They say nothing about how a kernel computes. Clusters are stitched and the plan is verified as
always, so that wrong decisions cost time, and no more.
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
class Decisions:
    """`inlined`: library calls whose products kernels compute, by their number among the calls of
    the graph. `fusion_barriers`, `rematerialised`: nodes, by their number in the graph that has
    these products in sight; `clusters`: of the vertices of its work. `refusals`: why neighbours
    stayed apart."""

    inlined: tuple[int, ...]
    fusion_barriers: tuple[int, ...]
    rematerialised: tuple[int, ...]
    clusters: tuple[tuple[int, ...], ...]
    refusals: tuple[tuple[str, str, str], ...]

    @property
    def record(self) -> dict[str, object]:
        """To be written as JSON."""
        return asdict(self)

    @staticmethod
    def parse(record: object) -> Decisions | None:
        """None for what is no such record."""
        match record:
            case {
                "inlined": [*inlined],
                "fusion_barriers": [*fusion_barriers],
                "rematerialised": [*rematerialised],
                "clusters": [*clusters],
                "refusals": [*refusals],
            } if all(isinstance(each, list) for each in (*clusters, *refusals)):
                pass
            case _:
                return None
        numbers = (
            *inlined,
            *fusion_barriers,
            *rematerialised,
            *(n for each in clusters for n in each),
        )
        texts = [text for each in refusals for text in each]
        is_whole = all(type(number) is int for number in numbers)
        is_whole = is_whole and all(isinstance(text, str) for text in texts)
        if not is_whole or any(len(each) != 3 for each in refusals):
            return None
        return Decisions(
            *(tuple(inlined), tuple(fusion_barriers), tuple(rematerialised)),
            tuple(map(tuple, clusters)),
            tuple((label, check, why) for label, check, why in refusals),
        )


def decisions_of(graph: Graph, clustering: Clustering, refusals: Labelled) -> Decisions:
    """`graph`: as it was before its products were inlined."""
    work = clustering.work
    left = set(_calls(work.graph))
    place = {vertex: number for number, vertex in enumerate(work.vertices)}
    return Decisions(
        tuple(number for number, call in enumerate(_calls(graph)) if call not in left),
        _numbers(work.graph, work.materialisation.fusion_barriers),
        _numbers(work.graph, work.rematerialised),
        tuple(tuple(place[v] for v in cluster.vertices) for cluster in clustering.clusters),
        tuple((label, refusal.check, refusal.why) for label, refusal in refusals),
    )


def clustering_of(
    graph: Graph, trials: Trials, decided: Decisions, options: Options
) -> tuple[Clustering, Labelled]:
    """Raises InternalError where the decisions are not about this graph."""
    calls = _calls(graph)
    inlined = set(_picked(calls, decided.inlined))
    if inlined:
        by_library = {call for call in calls if call not in inlined}
        graph = inline_matmuls(graph, trials.machine, by_library, exact=options.exact).graph
    nodes = toposort(graph.roots)
    fusion_barriers, rematerialised = (
        _picked(nodes, each) for each in (decided.fusion_barriers, decided.rematerialised)
    )
    needs = materialisation(graph, frozenset(fusion_barriers))
    if not all(is_elementwise(node.op) and node not in needs.tensors for node in rematerialised):
        raise InternalError("decisions: what cannot be made again")
    work = Work(graph, needs, frozenset(rematerialised))
    merged = [_picked(work.vertices, each) for each in decided.clusters]
    _check(work, merged)
    try:
        clustering = Clustering(
            work, trials, merged, conservative=options.planner == "conservative"
        )
        clustering.settle()
    except CycleError as error:
        raise InternalError("decisions: clusters wait for each other") from error
    return clustering, tuple((name, Refusal(check, why)) for name, check, why in decided.refusals)


def _check(work: Work, clusters: Sequence[Sequence[Vertex]]) -> None:
    cluster_of = {vertex: n for n, each in enumerate(clusters) for vertex in each}
    is_partition = len(cluster_of) == len(work.vertices) == sum(map(len, clusters))
    is_apart = all(len(each) == 1 or not any(map(is_library_vertex, each)) for each in clusters)
    if not is_partition or not is_apart:
        raise InternalError("decisions: no partition of this graph")
    if any(len({cluster_of[v] for v in unit}) != 1 for unit in work.unit_of.values()):
        raise InternalError("decisions: writes that belong together are apart")


def _calls(graph: Graph) -> list[Call]:
    return [call_of(node) for node in toposort(graph.roots) if is_call(node.op)]


def _numbers(graph: Graph, nodes: Iterable[Node]) -> tuple[int, ...]:
    wanted = set(nodes)
    return tuple(n for n, node in enumerate(toposort(graph.roots)) if node in wanted)


def _picked(items: Sequence[Item], numbers: Iterable[int]) -> list[Item]:
    found = []
    for number in numbers:
        if not 0 <= number < len(items):
            raise InternalError("decisions: a number beyond the graph")
        found.append(items[number])
    return found
