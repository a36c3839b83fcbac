"""Profitability check of fusion (FusionStitching 2020, section 6: no negative optimisation). A
kernel is split where the machine model estimates less time for its pieces. Three splits are tried:
the pieces of the conservative planner; pieces without a grid-wide barrier (AStitch fuses across a
barrier without a cost model); pieces that compute an expensive value once for all rows that read it
(FusionStitching 2020, section 4.2: such an operation may be a sub-root).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, combines, is_elementwise
from hemstitch.kernel_ir.nodes import Let
from hemstitch.kernel_ir.traffic import executed
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.greedy_merging import merge_all
from hemstitch.planning.launches import seconds
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.work import Vertex
from hemstitch.stitching.refusal import Refusal

LOSS = 0.95  # share of a kernel's time that its pieces must stay below: closer than that is within
# the model's error, and fewer kernels are preferred
FEW = 20  # pieces, of which a single launch is more than that share


def without_unprofitable_fusion(clustering: Clustering) -> Clustering:
    """The same clustering where every fusion is profitable."""
    merged = [c for c in clustering.clusters if len(c.vertices) > 1 and _is_kernel(clustering, c)]
    merged = [cluster for cluster in merged if _may_lose(clustering, cluster)]
    best: dict[Cluster, list[list[Vertex]]] = {c: [c.vertices] for c in clustering.clusters}
    for is_doubtful, divided in _SPLITS:
        doubtful = [cluster for cluster in merged if is_doubtful(clustering, cluster)]
        if not doubtful:
            continue
        parts = divided(clustering, doubtful)
        merge_all(parts)
        parts.settle()
        for cluster in doubtful:
            pieces = list(dict.fromkeys(parts.cluster_of[vertex] for vertex in cluster.vertices))
            vertex_sets = [piece.vertices for piece in pieces]
            is_possible = all(_is_piece(clustering, parts, piece) for piece in pieces)
            now = _seconds(clustering, best[cluster])
            if is_possible and _seconds(clustering, vertex_sets) < LOSS * now:
                best[cluster] = vertex_sets
    if all(len(pieces) == 1 for pieces in best.values()):
        return clustering
    vertex_sets = [vertices for pieces in best.values() for vertices in pieces]
    settled = Clustering(clustering.work, clustering.trials, vertex_sets)
    settled.settle()
    for cluster, lists in best.items():
        if len(lists) > 1:
            now, then = _seconds(clustering, [cluster.vertices]), _seconds(clustering, lists)
            _record_refusals(
                settled, {settled.cluster_of[vertices[0]] for vertices in lists}, now, then
            )
    return settled


def at_least_as_fast(
    clustering: Clustering,
    conservative: Clustering,
    pack: bool,
    finished: Callable[[Clustering], Clustering],
) -> Clustering:
    """The conservative clustering if that is faster, else `clustering`. Independent pieces in one
    launch can be faster than kernels that are each profitable. A small conservative clustering is
    `finished` as well."""
    few = len(conservative.clusters) <= FEW
    other = finished(conservative) if few else conservative
    if len(other.unstitchable) > len(clustering.unstitchable):
        return clustering  # library forms have no time in the model
    now, then = seconds(clustering, pack), seconds(other, pack)
    if then >= LOSS * now:
        return clustering
    _record_refusals(other, set(other.clusters), now, then)
    return other


def _may_lose(clustering: Clustering, cluster: Cluster) -> bool:
    """Whether two kernels with the same traffic could be faster."""
    trials, group = clustering.trials, clustering.group_of(cluster)
    return trials.least_seconds(group, 2) < LOSS * trials.seconds([group])


def _record_refusals(
    clustering: Clustering, clusters: set[Cluster], together: float, apart: float
) -> None:
    """Records the refusal of neighbouring clusters."""
    why = f"{together * 1e6:.1f} us together, {apart * 1e6:.1f} us apart, by the machine model"
    for cluster in clusters:
        for after in cluster.after & clusters:
            clustering.refusals[cluster, after] = Refusal("loss", why)


def _reduces(_: Clustering, cluster: Cluster) -> bool:
    """Whether it has a reduction; without one, conservative pieces are the same or move more."""
    return any(isinstance(v, Node) and combines(v.op) for v in cluster.vertices)


def _waits(clustering: Clustering, cluster: Cluster) -> bool:
    kernel = clustering.trials.stitched([clustering.group_of(cluster)], "attempt").kernel
    return len(kernel.phases) > 1


def _conservative(clustering: Clustering, doubtful: Iterable[Cluster]) -> Clustering:
    left = _left(clustering, doubtful)
    work, trials = clustering.work, clustering.trials
    return Clustering(work, trials, left, conservative=True, inside=clustering)


def _without_waiting(clustering: Clustering, doubtful: Iterable[Cluster]) -> Clustering:
    left = _left(clustering, doubtful)
    return Clustering(clustering.work, clustering.trials.without_barriers, left, inside=clustering)


def _repeats(clustering: Clustering, cluster: Cluster) -> bool:
    """Whether an expensive value is recomputed for every row that reads it."""
    trials, group = clustering.trials, clustering.group_of(cluster)
    once: Counter[Op] = Counter()
    for node in group.members:
        if OPS[node.op].is_expensive and is_elementwise(node.op):
            once[node.op] += evaluate(node.type.size, group.hints)
    if not once:
        return False
    sizes = {**group.hints, "threads": trials.machine.threads}
    computed: Counter[Op] = Counter()
    for phase in trials.stitched([group], "attempt").kernel.phases:
        for statement, times in executed(phase, sizes):
            if isinstance(statement, Let) and statement.op in once:
                computed[statement.op] += times
    return any(times >= 2 * once[op] for op, times in computed.items())


def _with_sub_roots(clustering: Clustering, doubtful: Iterable[Cluster]) -> Clustering:
    left, work = _left(clustering, doubtful), clustering.work

    def sub_root(first: Cluster, second: Cluster) -> Refusal | None:
        members = [v for v in first.vertices if isinstance(v, Node)]
        expensive = [v for v in members if OPS[v.op].is_expensive and is_elementwise(v.op)]
        least = min((work.bytes(node) for node in expensive), default=0)
        for reader in second.vertices if expensive else ():
            size = work.bytes(reader if isinstance(reader, Node) else reader.value)
            if size >= 2 * least and any(node in work.reads[reader] for node in members):
                return Refusal("sub-root", "it would compute an expensive value for every row")
        return None

    return Clustering(work, clustering.trials, left, inside=clustering, more=(sub_root,))


_SPLITS: tuple[
    tuple[
        Callable[[Clustering, Cluster], bool],
        Callable[[Clustering, Iterable[Cluster]], Clustering],
    ],
    ...,
] = ((_repeats, _with_sub_roots), (_waits, _without_waiting), (_reduces, _conservative))


def _left(clustering: Clustering, doubtful: Iterable[Cluster]) -> list[list[Vertex]]:
    """The vertices of clusters that are not split."""
    taken = set(doubtful)
    return [cluster.vertices for cluster in clustering.clusters if cluster not in taken]


def _is_kernel(clustering: Clustering, cluster: Cluster) -> bool:
    return not cluster.is_library and cluster not in clustering.unstitchable


def _is_piece(clustering: Clustering, parts: Clustering, piece: Cluster) -> bool:
    """Whether the piece is a kernel on the actual machine too: the machine without grid-wide
    barriers may stitch a piece that this one refuses."""
    group = clustering.work.group(piece.vertices)
    return _is_kernel(parts, piece) and clustering.trials.refusal(group) is None


def _seconds(clustering: Clustering, pieces: Iterable[list[Vertex]]) -> float:
    return sum(clustering.trials.seconds([clustering.work.group(piece)]) for piece in pieces)
