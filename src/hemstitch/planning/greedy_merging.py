"""The greedy planner: legal merges, biggest saving first, until none is left.

AStitch's rule, "as large as possible" (section 4.1), with its remote stitching confined to readers
of one tensor; what shares nothing is packed into one launch later.
"""

from __future__ import annotations

from hemstitch.ir.graph import Node
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.work import Vertex, is_library_vertex
from hemstitch.stitching.group import is_member


def merge_all(clustering: Clustering) -> None:
    """First as if all could be stitched: most can. Whatever turns out not to be a kernel falls
    apart where it ceased to be one, and is merged on with a trial at each step."""
    _merge(clustering, trust=True)
    clustering.fall_apart()
    _merge(clustering, trust=False)


def _merge(clustering: Clustering, trust: bool) -> None:
    """Producers with their consumers, then readers of one tensor, until nothing changes."""
    edges = _edges(clustering)
    siblings = [] if clustering.conservative else _siblings(clustering)
    clusters, changed = clustering.cluster_of, True
    while changed:
        changed = False
        for producer, consumer in edges:
            changed |= clustering.try_merge(clusters[producer], clusters[consumer], trust=trust)
        for node, one, other in siblings:
            ours, theirs = clusters[one], clusters[other]
            if ours is not theirs and _pays(clustering, node, ours, theirs):
                first, second = sorted((ours, theirs), key=lambda cluster: cluster.position)
                changed |= clustering.try_merge(first, second, trust=trust)


def _edges(clustering: Clustering) -> list[tuple[Node, Vertex]]:
    """The largest values first, those of about one size in program order. A small one that many
    read, a mask of attention for one, would otherwise bring them into one kernel, each apart from
    what it passes most to."""
    work = clustering.work
    found = [
        (node, vertex)
        for vertex in work.vertices
        if not is_library_vertex(vertex)
        for node in sorted(work.reads[vertex], key=work.bytes, reverse=True)
        if is_member(node) and clustering.may_meet(node, vertex)
    ]
    return sorted(found, key=lambda edge: -work.bytes(edge[0]).bit_length())


def _siblings(clustering: Clustering) -> list[tuple[Node, Vertex, Vertex]]:
    """What is read, and two that read it, each pair once."""
    work = clustering.work
    kernels = [vertex for vertex in work.vertices if not is_library_vertex(vertex)]
    readers: dict[Node, list[Vertex]] = {}
    for vertex in kernels:
        for node in work.reads[vertex]:
            readers.setdefault(node, []).append(vertex)
    return [
        (node, vertex, other)
        for vertex in kernels
        for node in work.reads[vertex]
        for other in readers[node]
        if work.place(vertex) < work.place(other) and clustering.may_meet(vertex, other)
    ]


def _pays(clustering: Clustering, node: Node, ours: Cluster, theirs: Cluster) -> bool:
    """Reading it once saves a fair part."""
    least = min(clustering.bytes_read(ours), clustering.bytes_read(theirs))
    return 4 * clustering.work.bytes(node) >= least
