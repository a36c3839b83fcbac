"""Selection of values to rematerialise in every kernel that reads them, so that no kernel stores
them; for example bf16 widened to f32. Takes merged clusters, gives nodes.

A value that crosses kernels is stored by one and loaded by the others. Where it follows cheaply
from one tensor that is no larger, they can load that tensor instead (FusionStitching 2020, section
3.1, between kernels). This runs on merged clusters, since a value that stays inside one kernel
causes no traffic. Clusters only lose vertices by it, so the number of kernels never grows.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from hemstitch.ir.calls import has_effects
from hemstitch.ir.dims import Dim, evaluate
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, combines, is_elementwise, is_reduction
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.work import Vertex, Work


def worth_rematerialising(clustering: Clustering, pinned: Container[Node]) -> frozenset[Node]:
    """The nodes that save time when rematerialised. `pinned`: values that must stay stored."""
    search = _Search(clustering, pinned)
    for node in clustering.work.rank:
        search.visit(node)
    return frozenset(search.rematerialised)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The tensor from which a value can be rematerialised (None: from constants), the members in
    between, including the value, and their flops for one element."""

    source: Node | None
    between: frozenset[Node]
    flops: int


class _Search:
    """Visits producers first, so that the sources of a value are decided before it."""

    def __init__(self, clustering: Clustering, pinned: Container[Node]) -> None:
        self.clustering = clustering
        self.work = clustering.work
        self.pinned = pinned
        self.changing = _changing(clustering.work)
        self.rematerialised: set[Node] = set()
        self.stored: set[Node] = set()  # because something is rematerialised from it
        self.near: dict[Cluster, set[Vertex]] = {
            cluster: {n for v in cluster.vertices for n in (v, *clustering.work.reads[v])}
            for cluster in clustering.clusters
        }

    def visit(self, node: Node) -> None:
        others = self._other_readers(node)
        if not others or not self._is_candidate(node, others):
            return
        origins = list(self._origins(node))
        best = max(origins, key=lambda origin: self._gain(node, origin, others), default=None)
        if best is None or self._gain(node, best, others) <= 0:
            return
        self.rematerialised |= best.between
        if best.source is not None:
            self.stored.add(best.source)
            for reader in others:
                self.near[reader].add(best.source)

    def _other_readers(self, node: Node) -> set[Cluster]:
        clusters = self.clustering.cluster_of
        readers = self.work.readers.get(node, ())
        return {clusters[reader] for reader in readers} - {clusters.get(node)}

    def _is_candidate(self, node: Node, others: set[Cluster]) -> bool:
        if not is_elementwise(node.op) or node in self.work.materialised or node in self.pinned:
            return False
        concerned = [self.clustering.cluster_of[node], *others]
        return not any(c.is_library or c in self.clustering.unstitchable for c in concerned)

    def _is_stored(self, node: Node) -> bool:
        if node in self.work.materialised or node.op in (Op.INPUT, Op.RESULT):
            return True
        return node in self.stored or (
            node not in self.rematerialised and bool(self._other_readers(node))
        )

    def _origins(self, node: Node) -> Iterator[_Origin]:
        """Each single tensor from which `node` can be rematerialised."""
        rank, frontier, passed, flops = self.work.rank, {node}, set[Node](), 0
        while frontier:
            last = max(frontier, key=lambda n: rank[n])
            is_end = last is not node and (self._is_stored(last) or last in self.pinned)
            if is_end or not is_elementwise(last.op) or OPS[last.op].is_expensive:
                return
            passed.add(last)
            between = self.work.between(last.inputs)
            flops += OPS[last.op].flops + sum(OPS[n.op].flops for n in between)
            frontier = (frontier - {last}) | self.work.sources(last.inputs).keys()
            if len(frontier) <= 1 and not frontier & self.changing:
                yield _Origin(next(iter(frontier), None), frozenset(passed), flops)

    def _gain(self, node: Node, origin: _Origin, others: set[Cluster]) -> float:
        """Seconds saved, at the bandwidth of L2 as a lower bound. A source larger than the value is
        refused: it would take more memory while it is alive."""
        machine = self.clustering.trials.machine
        mine, source = self.work.bytes(node), origin.source
        its = 0 if source is None else self.work.bytes(source)
        if its > mine:
            return 0.0
        loads = sum(source not in self.near[reader] for reader in others)
        stores = source is not None and not self._is_stored(source)
        saved = mine * (1 + len(others)) - its * (stores + loads)
        work = origin.flops * sum(self._times(node, reader) for reader in others)
        operations = machine.operations_per_second * machine.lanes
        return (saved / machine.cache_bytes_per_second - work / operations) / machine.threads

    def _times(self, node: Node, reader: Cluster) -> int:
        """How many elements of `node` the kernel `reader` computes: those of the largest value
        whose loop inlines it."""
        most, seen, work = 0, set[Vertex](), [node]
        while work:
            for vertex in self.work.readers.get(work.pop(), ()):
                if self.clustering.cluster_of[vertex] is not reader or vertex in seen:
                    continue
                seen.add(vertex)
                most = max(most, evaluate(_volume(vertex), self.work.hints))
                if isinstance(vertex, Node) and not is_reduction(vertex.op):
                    work.append(vertex)
        return most


def _volume(vertex: Vertex) -> Dim:
    if not isinstance(vertex, Node):
        return vertex.value.type.size
    return vertex.inputs[0].type.size if combines(vertex.op) else vertex.type.size


def _changing(work: Work) -> set[Node]:
    """Memory whose contents a later step may replace: what is made from it must be made before."""
    materialisation = work.materialisation
    replaced = {write.tensor.node for write in materialisation.writes if write.tensor.is_argument}
    for node, operands in materialisation.operands.items():
        if has_effects(node.attr):
            replaced |= {operand.tensor.node for operand in operands}
    return replaced
