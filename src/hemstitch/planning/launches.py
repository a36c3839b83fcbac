"""Packs clusters into launches: orders them so that independent ones are adjacent, and packs those
into one launch (AStitch's independent scheme, section 4.2)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Node, Op
from hemstitch.machine.record import Execution
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster

LONG = 50.0  # launch times; longer matmuls or writes are not packed


def launches(clustering: Clustering, pack: bool) -> list[list[Cluster]]:
    """All clusters in execution order; each list is one launch. A library call or an unstitchable
    cluster is alone. Of two orders the one with fewer launches."""
    orders = (_kernels_first(clustering), _calls_first(clustering))
    return min((_packed(clustering, order, pack) for order in orders), key=len)


def _packed(clustering: Clustering, order: Iterable[Cluster], pack: bool) -> list[list[Cluster]]:
    most = clustering.trials.machine.most_packed
    packed: list[list[Cluster]] = []
    for cluster in order:
        last = packed[-1] if packed else []
        is_free = pack and 0 < len(last) < most and not cluster.before & set(last)
        if is_free and _is_short(clustering, last[0]) and _is_short(clustering, cluster):
            last.append(cluster)
        else:
            packed.append([cluster])
    return packed


def seconds(clustering: Clustering, pack: bool) -> float:
    """The time of all kernels, by the machine model."""
    return sum(
        clustering.trials.seconds([clustering.group_of(cluster) for cluster in launch])
        for launch in launches(clustering, pack)
        if _is_kernel(clustering, launch[0])
    )


def _is_short(clustering: Clustering, cluster: Cluster) -> bool:
    """Whether a kernel may share a launch: on a CPU its matmuls take little time, and it writes
    little. Weight gradients, for example, have no early reader: one launch of all of them would
    keep their operands until the last can start, which is most of a backward pass."""
    if not _is_kernel(clustering, cluster) or _writes_much(clustering, cluster):
        return False
    machine, hints = clustering.trials.machine, clustering.work.hints
    matmuls = [v for v in cluster.vertices if isinstance(v, Node) and v.op is Op.DOT]
    if matmuls and machine.execution is Execution.SIMT:
        return True
    seconds = 0.0
    for matmul in matmuls:
        units = machine.matrix_units[matmul.inputs[0].type.dtype]
        work = evaluate(matmul.type.size * matmul.inputs[0].shape[-1], hints)
        seconds += units.seconds(2 * work)
    return seconds < LONG * machine.launch_seconds


def _writes_much(clustering: Clustering, cluster: Cluster) -> bool:
    """Whether its intermediates take longer to write than LONG launches: packed with ready
    clusters, they would exist long before they are read."""
    work, machine = clustering.work, clustering.trials.machine
    tensors = {write.tensor for write in clustering.group_of(cluster).writes}
    between = (t.node for t in tensors if not (t.is_result or t.is_argument))
    written = sum(map(work.bytes, between))
    return written > LONG * machine.launch_seconds * machine.memory_bytes_per_second


def _is_kernel(clustering: Clustering, cluster: Cluster) -> bool:
    return not cluster.is_library and cluster not in clustering.unstitchable


def _kernels_first(clustering: Clustering) -> Iterator[Cluster]:
    """Program order, but ready kernels precede library calls: their operands are still cached, and
    their results are read soon."""
    ready = _Ready(clustering)
    while ready:
        yield ready.take(calls=not ready.kernels)


def _calls_first(clustering: Clustering) -> Iterator[Cluster]:
    """All ready library calls, then all ready kernels, in turns: the epilogues of several
    projections of one tensor become one launch."""
    ready = _Ready(clustering)
    while ready:
        calls = bool(ready.calls)
        for _ in range(len(ready.calls if calls else ready.kernels)):
            yield ready.take(calls)


class _Ready:
    """Clusters without pending predecessors, in program order."""

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
