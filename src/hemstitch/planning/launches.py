"""What is launched together, and when: clusters in an order that brings independent ones side by
side, packed into one launch where they are (AStitch's independent scheme, section 4.2).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Node, Op
from hemstitch.machine.record import Execution
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster

LONG = 50.0  # launches, in whose time a product, or writing memory, is worth one of its own


def launches(clustering: Clustering, pack: bool) -> list[list[Cluster]]:
    """All clusters, in the order in which they run. Those that one list holds are one launch; a
    library call, and what is no kernel, is alone. Of two orders the one with fewer launches."""
    orders = (_kernels_first(clustering), _calls_first(clustering))
    return min((_packed(clustering, order, pack) for order in orders), key=len)


def _packed(clustering: Clustering, order: Iterable[Cluster], pack: bool) -> list[list[Cluster]]:
    most = clustering.trials.machine.most_packed
    found: list[list[Cluster]] = []
    for cluster in order:
        last = found[-1] if found else []
        is_free = pack and 0 < len(last) < most and not cluster.before & set(last)
        if is_free and _is_short(clustering, last[0]) and _is_short(clustering, cluster):
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


def _is_short(clustering: Clustering, cluster: Cluster) -> bool:
    """A kernel, and not one that multiplies for so long on a processor that a launch is nothing to
    it. Gradients of weights wait for nobody: in one launch they would hold what each of them reads
    until the last can begin, which is all that a backward pass computes. Nor one that leaves so
    much to others: in one launch with what is ready it would be there long before it is read."""
    if not _is_kernel(clustering, cluster) or _leaves_much(clustering, cluster):
        return False
    machine, hints = clustering.trials.machine, clustering.work.hints
    products = [v for v in cluster.vertices if isinstance(v, Node) and v.op is Op.DOT]
    if products and machine.execution is Execution.SIMT:
        return True
    seconds = 0.0
    for product in products:
        units = machine.matrix_units[product.inputs[0].type.dtype]
        work = evaluate(product.type.size * product.inputs[0].shape[-1], hints)
        seconds += units.seconds(2 * work)
    return seconds < LONG * machine.launch_seconds


def _leaves_much(clustering: Clustering, cluster: Cluster) -> bool:
    work, machine = clustering.work, clustering.trials.machine
    tensors = {write.tensor for write in clustering.group_of(cluster).writes}
    between = (t.node for t in tensors if not (t.is_result or t.is_argument))
    left = sum(map(work.bytes, between))
    return left > LONG * machine.launch_seconds * machine.memory_bytes_per_second


def _is_kernel(clustering: Clustering, cluster: Cluster) -> bool:
    return not cluster.is_library and cluster not in clustering.unstitchable


def _kernels_first(clustering: Clustering) -> Iterator[Cluster]:
    """As in the program, but that kernels which are ready go before library calls: what they read
    is still near, and what they leave is needed soon."""
    ready = _Ready(clustering)
    while ready:
        yield ready.take(calls=not ready.kernels)


def _calls_first(clustering: Clustering) -> Iterator[Cluster]:
    """Library calls, then all kernels that wait for no others, in turns: what stands behind each
    of several projections of one tensor is one launch."""
    ready = _Ready(clustering)
    while ready:
        calls = bool(ready.calls)
        for _ in range(len(ready.calls if calls else ready.kernels)):
            yield ready.take(calls)


class _Ready:
    """Clusters that wait for nothing, in the order of the program. Taking one may add others."""

    def __init__(self, clustering: Clustering) -> None:
        self.waiting = {cluster: len(cluster.before) for cluster in clustering.clusters}
        self.number = {cluster: place for place, cluster in enumerate(self.waiting)}
        self.kernels: list[tuple[int, int, Cluster]] = []
        self.calls: list[tuple[int, int, Cluster]] = []
        for cluster, count in self.waiting.items():
            if not count:
                self._add(cluster)

    def __bool__(self) -> bool:
        return bool(self.kernels or self.calls)

    def _add(self, cluster: Cluster) -> None:
        heap = self.calls if cluster.is_library else self.kernels
        heapq.heappush(heap, (cluster.position, self.number[cluster], cluster))

    def take(self, calls: bool) -> Cluster:
        *_, cluster = heapq.heappop(self.calls if calls else self.kernels)
        for after in cluster.after:
            self.waiting[after] -= 1
            if not self.waiting[after]:
                self._add(after)
        return cluster
