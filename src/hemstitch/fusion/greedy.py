"""The greedy planner: legal merges, biggest saving first, until none is left.

AStitch's rule, "as large as possible" (section 4.1), with its remote stitching confined to readers
of one tensor; what shares nothing is packed into one launch later.
"""

from __future__ import annotations

from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.order import Cluster
from hemstitch.fusion.work import Vertex, Work, is_library_vertex
from hemstitch.ir.graph import Node
from hemstitch.stitch.group import is_member


def merge_all(clustering: Clustering) -> None:
    """First as if all could be stitched: most can. Whatever turns out not to be a kernel falls
    apart where it ceased to be one, and is merged on with a trial at each step."""
    _merge(clustering, trust=True)
    clustering.fall_apart()
    _merge(clustering, trust=False)


def _merge(clustering: Clustering, trust: bool) -> None:
    """Producers with their consumers, then readers of one tensor, until nothing changes."""
    edges = _edges(clustering.work)
    changed = True
    while changed:
        changed = False
        clusters = clustering.cluster_of
        for producer, consumer in edges:
            changed |= clustering.try_merge(clusters[producer], clusters[consumer], trust=trust)
        if not clustering.conservative:
            for vertex in clustering.work.vertices:
                changed |= _merge_with_siblings(clustering, vertex, trust)


def _edges(work: Work) -> list[tuple[Node, Vertex]]:
    """The largest values first, those of about one size in program order. A small one that many
    read, a mask of attention for one, would otherwise bring them into one kernel, each apart from
    what it passes most to."""
    found = [
        (node, vertex)
        for vertex in work.vertices
        if not is_library_vertex(vertex)
        for node in sorted(work.reads[vertex], key=work.bytes, reverse=True)
        if is_member(node)
    ]
    return sorted(found, key=lambda edge: -work.bytes(edge[0]).bit_length())


def _merge_with_siblings(clustering: Clustering, vertex: Vertex, trust: bool) -> bool:
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
                changed |= clustering.try_merge(*pair, trust=trust)
    return changed


def _pays(clustering: Clustering, node: Node, ours: Cluster, theirs: Cluster) -> bool:
    least = min(clustering.bytes_read(ours), clustering.bytes_read(theirs))
    return 4 * clustering.work.bytes(node) >= least
