"""No fusion at a loss: what the machine model thinks slower in one kernel than in the conservative
planner's pieces falls apart into these (FusionStitching 2020, section 6: no negative optimisation).
"""

from __future__ import annotations

from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.greedy import merge_all
from hemstitch.fusion.launches import seconds
from hemstitch.fusion.order import Cluster
from hemstitch.fusion.work import Vertex
from hemstitch.ir.graph import Node
from hemstitch.ir.ops import is_reduction

LOSS = 0.95  # share of a kernel's time below which its pieces are believed to take less: closer
# than that, the model cannot tell, and fewer kernels are the better guess


def without_loss(clustering: Clustering) -> Clustering:
    """The same clustering where nothing is lost."""
    doubtful = [cluster for cluster in clustering.clusters if _is_doubtful(clustering, cluster)]
    if not doubtful:
        return clustering
    work, trials = clustering.work, clustering.trials
    parts = Clustering(work, trials, conservative=True, inside=clustering)
    merge_all(parts)
    parts.settle()
    merged: list[list[Vertex]] = []
    for cluster in clustering.clusters:
        pieces = list(dict.fromkeys(parts.cluster_of[vertex] for vertex in cluster.vertices))
        is_lost = cluster in doubtful and (
            _seconds(parts, pieces) < LOSS * _seconds(clustering, [cluster])
        )
        merged += [piece.vertices for piece in (pieces if is_lost else [cluster])]
    if len(merged) == len(clustering.clusters):
        return clustering
    found = Clustering(work, trials, merged)
    found.settle()
    return found


def no_worse(clustering: Clustering, conservative: Clustering, pack: bool) -> Clustering:
    """Pieces that are launched together can be faster than kernels that each look well."""
    if len(conservative.unstitchable) > len(clustering.unstitchable):
        return clustering  # what is left to the library has no time
    is_lost = seconds(conservative, pack) < LOSS * seconds(clustering, pack)
    return conservative if is_lost else clustering


def _is_doubtful(clustering: Clustering, cluster: Cluster) -> bool:
    """Without a reduction inside, conservative pieces are the same or move more."""
    if cluster.is_library or cluster in clustering.unstitchable:
        return False
    nodes = [vertex for vertex in cluster.vertices if isinstance(vertex, Node)]
    return len(cluster.vertices) > 1 and any(is_reduction(node.op) for node in nodes)


def _seconds(clustering: Clustering, clusters: list[Cluster]) -> float:
    if any(cluster in clustering.unstitchable for cluster in clusters):
        return float("inf")
    return sum(clustering.trials.seconds([clustering.group_of(c)]) for c in clusters)
