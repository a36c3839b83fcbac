"""Search-based planners over the work of a graph. Takes merged clusters, gives them or better ones.

The work becomes a problem of numbered vertices and values for `search`, and the solution becomes
clusters again. The search minimises bytes and launches (FusionStitching's delta evaluator). The
machine model then selects the fastest of the last few plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

from hemstitch.ir.graph import Node
from hemstitch.machine.record import Machine
from hemstitch.planning.clusters import MOST_MEMBERS, Clustering
from hemstitch.planning.launches import seconds
from hemstitch.planning.profitability import LOSS
from hemstitch.planning.search.search import Method, search
from hemstitch.planning.search.search_problem import (
    Oracle,
    PassedValue,
    Pattern,
    PatternPlan,
    PlanningProblem,
)
from hemstitch.planning.work import Vertex, Work, is_library_vertex


def searched(clustering: Clustering, method: Method, pack: bool) -> Clustering:
    """The result of the search with these clusters among its candidates, or the clusters themselves
    where they are faster. `pack`: as in `launches`."""
    work, trials = clustering.work, clustering.trials
    vertices = _in_order(work)
    number = {vertex: place for place, vertex in enumerate(vertices)}

    def chosen(pattern: Pattern) -> list[Vertex]:
        return sorted((vertices[n] for n in pattern.vertices), key=work.place)

    def legal(pattern: Pattern) -> bool:
        return trials.refusal(work.group(chosen(pattern))) is None

    def in_time(_: Pattern) -> float:
        trials.deadline.check()
        return 0.0

    def clusters(plan: PatternPlan) -> Clustering:
        settled = Clustering(work, trials, [chosen(pattern) for pattern in plan.patterns])
        settled.settle()
        return settled

    problem = problem_of(work, vertices, trials.machine)
    merged = [frozenset(number[v] for v in c.vertices) for c in clustering.clusters]
    candidate = clusters(
        search(
            *(problem, Oracle(legal, in_time), method),
            more=[vertex_set for vertex_set in merged if len(vertex_set) > 1],
            final=lambda plan: seconds(clusters(plan), pack),
        )
    )
    # More kernels have to gain more than the model's uncertainty.
    margin = LOSS if len(candidate.clusters) > len(clustering.clusters) else 1.0
    return (
        candidate if seconds(candidate, pack) < margin * seconds(clustering, pack) else clustering
    )


def problem_of(work: Work, vertices: Sequence[Vertex], machine: Machine) -> PlanningProblem:
    """`vertices`: in the order of their numbers. A value is the result of a vertex, or a tensor in
    memory. Writes store the same bytes in every plan, so they appear as order edges only."""
    number = {vertex: place for place, vertex in enumerate(vertices)}
    values = []
    materialised = (v for v in vertices if isinstance(v, Node) and v in work.materialised)
    for node in dict.fromkeys([*work.readers, *materialised]):
        readers = tuple(number[vertex] for vertex in work.readers.get(node, ()))
        is_kept = node in work.materialised
        values.append(PassedValue(work.bytes(node), number.get(node), readers, is_kept))
    units = dict.fromkeys(map(tuple, work.unit_of.values()))
    return PlanningProblem(
        len(vertices),
        tuple((number[before], number[after]) for before, after in _edges_between_units(work)),
        tuple(values),
        fixed=frozenset(number[v] for v in vertices if is_library_vertex(v)),
        together=tuple(frozenset(number[v] for v in unit) for unit in units),
        most=MOST_MEMBERS,
        launch_bytes=int(machine.launch_seconds * machine.memory_bytes_per_second),
    )


def _in_order(work: Work) -> list[Vertex]:
    """A topological order. The vertices of one unit may form a cycle, and are consecutive."""
    units = {vertex: tuple(work.unit_of.get(vertex, (vertex,))) for vertex in work.vertices}
    before: dict[tuple[Vertex, ...], list[tuple[Vertex, ...]]] = {u: [] for u in units.values()}
    for first, second in _edges_between_units(work):
        before[units[second]].append(units[first])
    return [vertex for unit in TopologicalSorter(before).static_order() for vertex in unit]


def _edges_between_units(work: Work) -> list[tuple[Vertex, Vertex]]:
    units = work.unit_of
    return [(a, b) for a, b in work.edges if a is not b and not (a in units and b in units)]
