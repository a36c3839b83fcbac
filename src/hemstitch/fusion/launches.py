"""What is launched together, and when: clusters in an order that brings independent ones side by
side, packed into one launch where they are (AStitch's independent scheme, section 4.2).
"""

from __future__ import annotations

import heapq

from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.order import Cluster


def launches(clustering: Clustering, pack: bool) -> list[list[Cluster]]:
    """All clusters, in the order in which they run. Those that one list holds are one launch; a
    library call, and what is no kernel, is alone."""
    most = clustering.trials.machine.most_packed
    found: list[list[Cluster]] = []
    for cluster in _in_order(clustering):
        last = found[-1] if found else []
        is_free = pack and 0 < len(last) < most and not cluster.before & set(last)
        if is_free and _is_kernel(clustering, last[0]) and _is_kernel(clustering, cluster):
            last.append(cluster)
        else:
            found.append([cluster])
    return found


def seconds(clustering: Clustering, pack: bool) -> float:
    """All kernels, by the machine model."""
    return sum(
        clustering.trials.seconds([clustering.group_of(cluster) for cluster in launch])
        for launch in launches(clustering, pack)
        if _is_kernel(clustering, launch[0])
    )


def _is_kernel(clustering: Clustering, cluster: Cluster) -> bool:
    return not cluster.is_library and cluster not in clustering.unstitchable


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
