"""From a graph to a plan: demands, clusters, order, kernels. Read `make_plan` first."""

from __future__ import annotations

import heapq

from hemstitch.fusion.cluster import Cluster, Clustering
from hemstitch.fusion.demand import Demands, demands
from hemstitch.fusion.names import kernel_name
from hemstitch.fusion.plan import KernelStep, LibraryFormStep, LibraryStep, Plan, Step
from hemstitch.fusion.products import open_products, without_gain
from hemstitch.fusion.remake import worth_remaking
from hemstitch.ir.graph import Graph, LibraryCall, Node, Op, toposort
from hemstitch.options import Options
from hemstitch.stitch.group import Group, through_memory
from hemstitch.stitch.machine import Machine
from hemstitch.stitch.refusal import Refusal, Refused
from hemstitch.stitch.stitch import stitch


def make_plan(graph: Graph, machine: Machine, options: Options) -> Plan:
    graph, needs, clustering = _with_products(graph, machine, options)
    order = _in_order(clustering)
    steps = _steps(graph, needs, clustering, order, options.pack)
    return Plan(
        graph,
        tuple(steps),
        tuple(needs.outputs[number] for number in range(len(graph.outputs))),
        _refusals(clustering),
    )


def _with_products(
    graph: Graph, machine: Machine, options: Options
) -> tuple[Graph, Demands, Clustering]:
    """Again without those products of matrices that gained nothing, until all that are left do."""
    closed: set[LibraryCall] = set()
    while machine.products and options.products and options.planner != "conservative":
        opened = open_products(graph, machine, closed)
        if not opened.calls:
            break
        needs, clustering = _clustered(opened.graph, machine, options)
        more = without_gain(opened, clustering, machine)
        if not more:
            return opened.graph, needs, clustering
        closed |= more
    return graph, *_clustered(graph, machine, options)


def _clustered(graph: Graph, machine: Machine, options: Options) -> tuple[Demands, Clustering]:
    """Once more where a node alone cannot look through a reshape that then gets memory."""
    obstacles: frozenset[Node] = frozenset()
    while True:
        needs = demands(graph, obstacles)
        clustering = Clustering(graph, needs, machine, options.planner == "conservative")
        clustering.merge_all()
        _split_impossible(clustering)
        more = clustering.obstacles() - obstacles
        if not more:
            return needs, _with_remade(clustering)
        obstacles |= more


def _with_remade(clustering: Clustering) -> Clustering:
    """Values that cross kernels, but move less when every reader makes them again, do not cross;
    then their readers may have become neighbours."""
    kept: frozenset[Node] = frozenset()
    while remade := worth_remaking(clustering, kept):
        found = clustering.remaking(remade)
        refused = found.remade_in_vain()
        if not refused:
            found.merge_all()
            _split_impossible(found)
            return found if len(found.clusters) <= len(clustering.clusters) else clustering
        kept |= refused
    return clustering


def _split_impossible(clustering: Clustering) -> None:
    """A last look at every cluster as it has become; what cannot be stitched falls apart."""
    for cluster in clustering.clusters:
        if not cluster.is_library and len(cluster.vertices) > 1:
            refusal = clustering.refusal_of(cluster)
            if refusal is not None:
                clustering.split(cluster)
    for cluster in clustering.clusters:
        if not cluster.is_library:
            refusal = clustering.refusal_of(cluster)
            if refusal is not None:
                clustering.unstitchable[cluster] = refusal


def _in_order(clustering: Clustering) -> list[Cluster]:
    """Topological, otherwise as in the program; kernels that are ready go before library calls,
    so that independent ones come together."""
    waiting = {cluster: len(cluster.before) for cluster in clustering.clusters}
    number = {cluster: place for place, cluster in enumerate(waiting)}
    ready = [(c.is_library, c.position, number[c], c) for c, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[Cluster] = []
    while ready:
        *_, cluster = heapq.heappop(ready)
        order.append(cluster)
        for after in cluster.after:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (after.is_library, after.position, number[after], after))
    assert len(order) == len(waiting), "the clusters form a cycle"
    return order


def _steps(
    graph: Graph, needs: Demands, clustering: Clustering, order: list[Cluster], pack: bool
) -> list[Step]:
    results = {n: n for n in toposort(graph.roots) if n.op is Op.RESULT}
    steps: list[Step] = []
    packed: list[Cluster] = []

    def flush() -> None:
        if packed:
            groups = tuple(clustering.group(cluster.vertices) for cluster in packed)
            steps.append(_kernel_step(graph, clustering.machine, groups, len(steps)))
            packed.clear()

    for cluster in order:
        if cluster.is_library:
            flush()
            steps.append(_library_step(cluster, needs, results))
        elif cluster in clustering.unstitchable:
            flush()
            steps.extend(_apart(graph, clustering, cluster, len(steps)))
        else:
            is_full = len(packed) == clustering.machine.most_packed
            if not pack or is_full or cluster.before & set(packed):
                flush()
            packed.append(cluster)
    flush()
    return steps


def _kernel_step(
    graph: Graph, machine: Machine, groups: tuple[Group, ...], number: int
) -> KernelStep:
    name = kernel_name(number, [n for group in groups for n in group.members], graph.origins)
    return KernelStep(groups, stitch(groups, machine, name))


def _apart(graph: Graph, clustering: Clustering, cluster: Cluster, number: int) -> list[Step]:
    """What is no single kernel: several, where it only moves values (`x.copy_(x.t())`)."""
    group, why = clustering.group(cluster.vertices), clustering.unstitchable[cluster]
    form = LibraryFormStep(group, why)
    if group.members or form.is_meant:
        return [form]
    parts, machine = enumerate(through_memory(group), number), clustering.machine
    try:
        return [_kernel_step(graph, machine, (part,), place) for place, part in parts]
    except Refused:
        return [form]


def _library_step(cluster: Cluster, needs: Demands, results: dict[Node, Node]) -> LibraryStep:
    (node,) = cluster.vertices
    assert isinstance(node, Node) and isinstance(node.attr, LibraryCall)
    found = {r.attr: needs.tensors[r] for r in results if r.inputs[0] is node}
    count = len(node.attr.results)
    return LibraryStep(node, needs.operands[node], tuple(found.get(i) for i in range(count)))


def _refusals(clustering: Clustering) -> tuple[tuple[str, Refusal], ...]:
    """The last word on every pair of neighbours that are still clusters of their own."""
    alive = set(clustering.clusters)
    return tuple(
        (f"{_label(first)} | {_label(second)}", refusal)
        for (first, second), refusal in clustering.refusals.items()
        if first in alive and second in alive and refusal.check != "library"
    )


def _label(cluster: Cluster) -> str:
    nodes = [vertex for vertex in cluster.vertices if isinstance(vertex, Node)]
    return nodes[-1].op.value if nodes else "write"
