"""An order of clusters that stays topological while they are merged, so that a look for cycles only
visits what lies between (Pearce and Kelly 2006, for contractions).

Every cluster has a rank, greater than those of all before it. A path from one to another passes
only ranks in between, and where two are merged only these have to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from hemstitch.planning.work import Vertex, is_library_vertex


@dataclass(slots=True, eq=False)
class Cluster:
    """Vertices in topological order. `position`: that of its last vertex in program order. `parts`:
    the two that it was merged of."""

    vertices: list[Vertex]
    position: int
    rank: int = 0
    before: set[Cluster] = field(default_factory=set)  # clusters it reads from
    after: set[Cluster] = field(default_factory=set)
    parts: tuple[Cluster, ...] = ()

    @property
    def is_library(self) -> bool:
        return is_library_vertex(self.vertices[0])


def join(before: Cluster, after: Cluster) -> None:
    """`before` must run before `after`, unless they are one."""
    if before is not after:
        before.after.add(after)
        after.before.add(before)


def number(clusters: Iterable[Cluster]) -> None:
    """Gives all their ranks. Raises graphlib.CycleError where there is no order."""
    order = TopologicalSorter({c: sorted(c.before, key=_position) for c in clusters})
    for rank, cluster in enumerate(order.static_order()):
        cluster.rank = rank


def is_cycle(first: Cluster, second: Cluster) -> bool:
    """Whether a path leads from one to the other through some third cluster."""
    lower, upper = sorted((first, second), key=_rank)
    return upper in _reached(lower, upper, lambda cluster: cluster.after)


def merge(first: Cluster, second: Cluster, vertices: list[Vertex]) -> Cluster:
    """One in place of two that form no cycle. What follows the lower one moves behind what
    precedes the upper one, and the new cluster in between."""
    lower, upper = sorted((first, second), key=_rank)
    behind = _reached(lower, upper, lambda cluster: cluster.after)
    ahead = _reached(upper, lower, lambda cluster: cluster.before)
    merged = Cluster(vertices, max(first.position, second.position), parts=(first, second))
    moved = [*sorted(ahead, key=_rank), merged, *sorted(behind, key=_rank)]
    ranks = sorted(cluster.rank for cluster in (lower, upper, *ahead, *behind))
    for cluster, rank in zip(moved, ranks):
        cluster.rank = rank
    _replace(first, second, merged)
    return merged


def _reached(start: Cluster, end: Cluster, step: Callable[[Cluster], set[Cluster]]) -> set[Cluster]:
    """Clusters with ranks between the two, and perhaps `end`, at the end of a path from `start`
    that is more than one step from it to `end`."""
    low, high = sorted((start.rank, end.rank))
    seen: set[Cluster] = set()
    work = [cluster for cluster in step(start) if cluster is not end]
    while work:
        cluster = work.pop()
        if cluster not in seen and low <= cluster.rank <= high:
            seen.add(cluster)
            work.extend(step(cluster))
    return seen


def _replace(first: Cluster, second: Cluster, merged: Cluster) -> None:
    merged.before = (first.before | second.before) - {first, second}
    merged.after = (first.after | second.after) - {first, second}
    for cluster in merged.before:
        cluster.after = (cluster.after - {first, second}) | {merged}
    for cluster in merged.after:
        cluster.before = (cluster.before - {first, second}) | {merged}


def _rank(cluster: Cluster) -> int:
    return cluster.rank


def _position(cluster: Cluster) -> int:
    return cluster.position
