"""From a graph to a plan: materialisation, clusters, order, kernels. Read `make_plan` first."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from hemstitch.errors import InternalError, PlanWarning
from hemstitch.ir.calls import Call
from hemstitch.ir.graph import Graph, Node, Op, call_of, toposort
from hemstitch.ir.ops import is_call
from hemstitch.machine.record import Machine
from hemstitch.matmul.inlining import inline_matmuls
from hemstitch.options import Options
from hemstitch.planning.cached_plan import CachedPlan, Labelled, cached_plan_of, clustering_of
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.greedy_merging import merge_all
from hemstitch.planning.kernel_names import kernel_name
from hemstitch.planning.launches import launches
from hemstitch.planning.materialisation import materialisation
from hemstitch.planning.materialised_views import Materialisation
from hemstitch.planning.matmul_profitability import without_gain
from hemstitch.planning.peak_memory import in_less_memory
from hemstitch.planning.plan import KernelStep, LibraryFormStep, LibraryStep, Plan, Step
from hemstitch.planning.profitability import at_least_as_fast, without_unprofitable_fusion
from hemstitch.planning.rematerialisation import worth_rematerialising
from hemstitch.planning.search.search import Method
from hemstitch.planning.searched_plans import searched
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.trials import Trials
from hemstitch.planning.verifier import verify_plan
from hemstitch.planning.work import Vertex, Work
from hemstitch.stitching.deadline import PLANNING_SECONDS, Deadline, OutOfTime
from hemstitch.stitching.group import Group, through_memory
from hemstitch.stitching.refusal import Refusal, Refused

Units = Sequence[Sequence[Vertex]]

METHODS: Mapping[str, Method] = {"beam": "beam", "ilp": "exact"}


def make_plan(
    graph: Graph,
    machine: Machine,
    options: Options,
    cached: CachedPlan | None = None,
    seconds: float = PLANNING_SECONDS,
) -> Plan:
    """`cached`: the cached plan of this graph; one that does not fit the graph is ignored.
    `seconds`: the time limit, after which the conservative planner runs, with the same limit;
    raises OutOfTime where that is not enough either."""
    try:
        return _planned(graph, Trials(machine, Deadline(seconds)), options, cached)
    except OutOfTime as error:
        if options.strict or options.planner == "conservative":
            raise
        warnings.warn(PlanWarning(str(error)), stacklevel=2)
    cautious = replace(options, planner="conservative")
    return _planned(graph, Trials(machine, Deadline(seconds)), cautious, None)


def _planned(graph: Graph, trials: Trials, options: Options, cached: CachedPlan | None) -> Plan:
    if cached is not None:
        with suppress(InternalError):
            return _from_cache(graph, trials, options, cached)
    clustering, by_library = _with_matmuls(graph, trials, options)
    refusals = (*_labelled(graph, by_library), *_refusals(clustering))
    return _plan(graph, clustering, refusals, options)


def _from_cache(graph: Graph, trials: Trials, options: Options, cached: CachedPlan) -> Plan:
    """Raises InternalError where the cached plan does not fit this graph."""
    clustering, refusals = clustering_of(graph, trials, cached, options)
    plan = _plan(graph, clustering, refusals, options)
    verify_plan(plan)
    return plan


def _plan(graph: Graph, clustering: Clustering, refusals: Labelled, options: Options) -> Plan:
    work = clustering.work
    return Plan(
        work.graph,
        tuple(_steps(clustering, options.pack)),
        tuple(work.materialisation.outputs[number] for number in range(len(graph.outputs))),
        refusals,
        cached_plan_of(graph, clustering, refusals),
    )


def _with_matmuls(
    graph: Graph, trials: Trials, options: Options
) -> tuple[Clustering, dict[Call, Refusal]]:
    """Inlines matmuls, and repeats without the unprofitable ones until all that are left are
    profitable. A merged clustering with unprofitable matmuls is not optimised further."""
    by_library: dict[Call, Refusal] = {}
    while trials.machine.matrix_units and options.inlines_matmuls:
        inlined = inline_matmuls(graph, trials.machine, by_library, exact=options.exact)
        by_library |= inlined.refused
        if inlined.graph.roots == graph.roots:
            break
        work = _work(inlined.graph, inlined.fusion_barriers)
        merged = _merged(work, trials, options, inlined.units)
        more = without_gain(inlined, merged)
        if not more:
            clustering = _best(merged, options)
            more = without_gain(inlined, clustering)
            if not more:
                return clustering, by_library
        by_library |= more
    return _best(_merged(_work(graph), trials, options), options), by_library


def _best(merged: Clustering, options: Options) -> Clustering:
    finished = _finished(merged)
    if options.planner == "conservative":
        return finished
    cautious = replace(options, planner="conservative")
    other = _merged(merged.work, merged.trials, cautious, merged.units)
    return at_least_as_fast(finished, other, options.pack, _finished)


def _finished(merged: Clustering) -> Clustering:
    return without_unprofitable_fusion(_with_rematerialised(merged))


def _work(graph: Graph, fusion_barriers: frozenset[Node] = frozenset()) -> Work:
    return Work(graph, materialisation(graph, fusion_barriers))


def _merged(work: Work, trials: Trials, options: Options, units: Units = ()) -> Clustering:
    """Repeats with further fusion barriers, where a single node cannot be stitched through a
    reshape."""
    is_conservative = options.planner == "conservative"
    while True:
        clustering = Clustering(work, trials, units, conservative=is_conservative, units=units)
        merge_all(clustering)
        clustering.settle()
        if options.planner in METHODS:
            clustering = searched(clustering, METHODS[options.planner], options.pack)
        fusion_barriers = work.materialisation.fusion_barriers
        more = clustering.fusion_barriers() - fusion_barriers
        if not more:
            return clustering
        work = _work(work.graph, fusion_barriers | more)


def _with_rematerialised(clustering: Clustering) -> Clustering:
    """Rematerialises values in every reader where that saves traffic between kernels. Clusters that
    become neighbours by that are merged."""
    pinned: frozenset[Node] = frozenset()
    while rematerialised := worth_rematerialising(clustering, pinned):
        candidate = clustering.rematerialising(rematerialised)
        refused = candidate.refused_rematerialisation()
        if not refused:
            merge_all(candidate)
            candidate.settle()
            return candidate if len(candidate.clusters) <= len(clustering.clusters) else clustering
        pinned |= refused
    return clustering


def _steps(clustering: Clustering, pack: bool) -> list[Step]:
    work = clustering.work
    results = {n: n for n in toposort(work.graph.roots) if n.op is Op.RESULT}
    steps: list[Step] = []
    for launch in in_less_memory(clustering, launches(clustering, pack)):
        first = launch[0]
        if first.is_library:
            steps.append(_library_step(first, work.materialisation, results))
        elif first in clustering.unstitchable:
            steps.extend(_unstitchable_steps(clustering, first, len(steps)))
        else:
            groups = tuple(clustering.group_of(cluster) for cluster in launch)
            steps.append(_kernel_step(clustering, groups, len(steps)))
    return steps


def _kernel_step(clustering: Clustering, groups: tuple[Group, ...], number: int) -> KernelStep:
    members = [node for group in groups for node in group.members]
    name = kernel_name(number, members, clustering.work.graph.origins)
    return KernelStep(groups, clustering.trials.stitched(groups, name))


def _unstitchable_steps(clustering: Clustering, cluster: Cluster, number: int) -> list[Step]:
    """The steps of an unstitchable cluster: several kernels, where it only moves values
    (`x.copy_(x.t())`)."""
    group, why = clustering.group_of(cluster), clustering.unstitchable[cluster]
    form = LibraryFormStep(group, why)
    if group.members or form.is_meant:
        return [form]
    parts = enumerate(through_memory(group), number)
    try:
        return [_kernel_step(clustering, (part,), place) for place, part in parts]
    except Refused:
        return [form]


def _library_step(
    cluster: Cluster, needs: Materialisation, results: dict[Node, Node]
) -> LibraryStep:
    (node,) = cluster.vertices
    assert isinstance(node, Node)
    results_by_index = {r.attr: needs.tensors[r] for r in results if r.inputs[0] is node}
    count = len(call_of(node).results)
    return LibraryStep(
        node, needs.operands[node], tuple(results_by_index.get(i) for i in range(count))
    )


def _labelled(graph: Graph, by_library: Mapping[Call, Refusal]) -> Labelled:
    """The refusals of calls that stay with the library, in program order."""
    calls = ((node, call_of(node)) for node in toposort(graph.roots) if is_call(node.op))
    return tuple(
        (_call_label(node), by_library[call]) for node, call in calls if call in by_library
    )


def _call_label(node: Node) -> str:
    shapes = ", ".join(str(list(operand.shape)) for operand in node.inputs)
    return f"{node.op.value} of {shapes}"


def _refusals(clustering: Clustering) -> Labelled:
    """The first refusal of each pair of clusters that was tried: a value and its reader, or two
    readers of one value."""
    alive = set(clustering.clusters)
    return tuple(
        (f"{_label(first)} | {_label(second)}", refusal)
        for (first, second), refusal in clustering.refusals.items()
        if first in alive and second in alive and refusal.check != "library"
    )


def _label(cluster: Cluster) -> str:
    nodes = [vertex for vertex in cluster.vertices if isinstance(vertex, Node)]
    return nodes[-1].op.value if nodes else "write"
