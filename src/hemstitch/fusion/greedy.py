"""The greedy planner: legal merges, biggest saving first, until none is left.

AStitch's rule, "as large as possible" (section 4.1), with its remote stitching confined to readers
of one tensor; what shares nothing is packed into one launch later.
"""

from __future__ import annotations

from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.order import Cluster
from hemstitch.fusion.work import Vertex, is_library_vertex
from hemstitch.ir.graph import Node
from hemstitch.stitch.group import is_member


def merge_all(clustering: Clustering) -> None:
    """Producers with their consumers, then readers of one tensor, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for vertex in clustering.work.vertices:
            changed |= _merge_with_producers(clustering, vertex)
        if not clustering.conservative:
            for vertex in clustering.work.vertices:
                changed |= _merge_with_siblings(clustering, vertex)


def _merge_with_producers(clustering: Clustering, vertex: Vertex) -> bool:
    if is_library_vertex(vertex):
        return False
    changed, clusters = False, clustering.cluster_of
    produced = [node for node in clustering.work.reads[vertex] if is_member(node)]
    for node in sorted(produced, key=clustering.work.bytes, reverse=True):
        changed |= clustering.try_merge(clusters[node], clusters[vertex])
    return changed


def _merge_with_siblings(clustering: Clustering, vertex: Vertex) -> bool:
    """Another reader of the same tensor, where reading it once saves a fair part."""
    if is_library_vertex(vertex):
        return False
    changed, clusters = False, clustering.cluster_of
    for node in clustering.work.reads[vertex]:
        for other in clustering.work.readers[node]:
            ours, theirs = clusters[vertex], clusters[other]
            is_other = ours is not theirs and not theirs.is_library
            if is_other and _pays(clustering, node, ours, theirs):
                pair = sorted((ours, theirs), key=lambda cluster: cluster.position)
                changed |= clustering.try_merge(*pair)
    return changed


def _pays(clustering: Clustering, node: Node, ours: Cluster, theirs: Cluster) -> bool:
    least = min(clustering.bytes_read(ours), clustering.bytes_read(theirs))
    return 4 * clustering.work.bytes(node) >= least
