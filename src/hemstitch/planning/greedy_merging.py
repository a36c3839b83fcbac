"""The greedy planner: applies legal merges, largest saving first, until none is left.

This is AStitch's rule "as large as possible" (section 4.1). Remote stitching is limited to readers
of one tensor; independent clusters are packed into one launch later.
"""

from __future__ import annotations

from hemstitch.ir.graph import Node
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.work import Vertex, is_library_vertex
from hemstitch.stitching.group import is_member


def merge_all(clustering: Clustering) -> None:
    """Merges first without trials, since most merges can be stitched. Unstitchable clusters are
    then split, and merging continues with a trial of each merge."""
    _merge(clustering, trust=True)
    clustering.split_unstitchable()
    _merge(clustering, trust=False)


def _merge(clustering: Clustering, trust: bool) -> None:
    """Merges producers with consumers, then readers of one tensor, until nothing changes."""
    edges = _edges(clustering)
    siblings = [] if clustering.conservative else _siblings(clustering)
    clusters, changed = clustering.cluster_of, True
    while changed:
        changed = False
        for producer, consumer in edges:
            changed |= clustering.try_merge(clusters[producer], clusters[consumer], trust=trust)
        for node, reader, second_reader in siblings:
            first_cluster, second_cluster = clusters[reader], clusters[second_reader]
            if first_cluster is not second_cluster and _is_profitable(
                clustering, node, first_cluster, second_cluster
            ):
                first, second = sorted(
                    (first_cluster, second_cluster), key=lambda cluster: cluster.position
                )
                changed |= clustering.try_merge(first, second, trust=trust)


def _edges(clustering: Clustering) -> list[tuple[Node, Vertex]]:
    """Producers with consumers, by decreasing size; values of about equal size in program order.
    Otherwise a small value with many readers, such as an attention mask, would merge them into one
    kernel, apart from the clusters that they exchange most with."""
    work = clustering.work
    edges = [
        (node, vertex)
        for vertex in work.vertices
        if not is_library_vertex(vertex)
        for node in sorted(work.reads[vertex], key=work.bytes, reverse=True)
        if is_member(node) and clustering.may_merge(node, vertex)
    ]
    return sorted(edges, key=lambda edge: -work.bytes(edge[0]).bit_length())


def _siblings(clustering: Clustering) -> list[tuple[Node, Vertex, Vertex]]:
    """A value and two of its readers, each pair once."""
    work = clustering.work
    kernels = [vertex for vertex in work.vertices if not is_library_vertex(vertex)]
    readers: dict[Node, list[Vertex]] = {}
    for vertex in kernels:
        for node in work.reads[vertex]:
            readers.setdefault(node, []).append(vertex)
    return [
        (node, vertex, sibling)
        for vertex in kernels
        for node in work.reads[vertex]
        for sibling in readers[node]
        if work.place(vertex) < work.place(sibling) and clustering.may_merge(vertex, sibling)
    ]


def _is_profitable(clustering: Clustering, node: Node, first: Cluster, second: Cluster) -> bool:
    """Whether reading `node` once saves a quarter of the bytes of the smaller cluster."""
    least = min(clustering.bytes_read(first), clustering.bytes_read(second))
    return 4 * clustering.work.bytes(node) >= least
