"""Clusters of work that become kernels: legal merges, biggest saving first, until none is left.

A vertex is what planning may not cut further: a member node, a write of something that is no
member (a transposed result, a mutated input), or a library call, which never merges. A member that
every reader makes again (`remade`) is no vertex: it is looked through, as a view is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Union

from hemstitch.fusion.demand import Demands
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph, Node, Op, toposort
from hemstitch.ir.ops import is_elementwise, is_reduction
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel.hazard import hazard
from hemstitch.stitch.group import Group, Tensor, Write, is_member
from hemstitch.stitch.machine import Machine
from hemstitch.stitch.refusal import OPAQUE, Refusal, Refused
from hemstitch.stitch.stitch import stitch

Vertex = Union[Node, Write]
MOST_MEMBERS = 160  # vertices of one kernel: bounds planning time and code size


@dataclass(slots=True, eq=False)
class Cluster:
    """Vertices in topological order. `position`: that of its last vertex in program order."""

    vertices: list[Vertex]
    position: int
    before: set[Cluster] = field(default_factory=set)  # clusters it reads from
    after: set[Cluster] = field(default_factory=set)

    @property
    def is_library(self) -> bool:
        return is_library_vertex(self.vertices[0])


def _library(first: Cluster, second: Cluster) -> Refusal | None:
    if first.is_library or second.is_library:
        return Refusal("library", "a library call is not looked into")
    return None


def _size(first: Cluster, second: Cluster) -> Refusal | None:
    if len(first.vertices) + len(second.vertices) > MOST_MEMBERS:
        return Refusal("size", f"more than {MOST_MEMBERS} nodes")
    return None


def is_library_vertex(vertex: Vertex) -> bool:
    return isinstance(vertex, Node) and vertex.op is Op.LIBRARY


class Clustering:
    """All clusters of a graph while they are merged."""

    def __init__(
        self,
        graph: Graph,
        demands: Demands,
        machine: Machine,
        conservative: bool,
        remade: frozenset[Node] = frozenset(),
        merged: Iterable[Sequence[Vertex]] = (),
    ) -> None:
        """`merged`: vertices that are one cluster from the beginning."""
        self.graph = graph
        self.demands = demands
        self.hints = graph.hints
        self.machine = machine
        self.conservative = conservative
        self.remade = remade
        self.tensors = dict(demands.tensors)
        self.demanded = frozenset(demands.tensors)
        self.refusals: dict[tuple[Cluster, Cluster], Refusal] = {}
        self.attempts: dict[tuple[Vertex, ...], Refusal | None] = {}
        self.unstitchable: dict[Cluster, Refusal] = {}  # not one kernel even alone
        order = toposort(graph.roots)
        self.rank = {node: position for position, node in enumerate(order)}
        members = [n for n in order if is_member(n) or n.op is Op.LIBRARY]
        vertices: list[Vertex] = [*(n for n in members if n not in remade), *demands.writes]
        self.made_by: dict[Node, list[Vertex]] = {}
        for write in demands.writes:
            self.made_by.setdefault(write.tensor.node, []).append(write)
        self.reads: dict[Vertex, dict[Node, None]] = {
            vertex: self._read_by(vertex) for vertex in vertices
        }
        self.readers: dict[Node, list[Vertex]] = {}
        for vertex, nodes in self.reads.items():
            for node in nodes:
                self.readers.setdefault(node, []).append(vertex)
        self.edges = list(dict.fromkeys(self._orders(graph, demands)))
        self.unit_of = self._units(demands)
        together = self.unit_of | {v: list(found) for found in merged for v in found}
        self.cluster_of: dict[Vertex, Cluster] = {}
        for vertex in vertices:
            if vertex not in self.cluster_of:
                unit = together.get(vertex, [vertex])
                position = max(self._position(each) for each in unit)
                self.cluster_of |= dict.fromkeys(unit, Cluster(list(unit), position))
        for before, after in self.edges:
            self._edge(self.cluster_of[before], self.cluster_of[after])

    def _position(self, vertex: Vertex) -> int:
        node = vertex if isinstance(vertex, Node) else vertex.value
        return self.rank.get(node, len(self.rank))

    def _orders(self, graph: Graph, demands: Demands) -> Iterator[tuple[Vertex, Vertex]]:
        """Which vertex must run before which."""
        for vertex, nodes in self.reads.items():
            for node in nodes:
                for producer in self._producers(node):
                    yield producer, vertex
        for node, operands in demands.operands.items():
            read = {operand.tensor for operand in operands}
            for write in demands.writes:
                if write.tensor in read and not write.tensor.is_argument:
                    yield write, node
        yield from pairwise(graph.effects)
        for write in demands.writes:
            if write.tensor.is_argument:  # whoever reads the old contents comes first
                for reader in self.readers.get(write.tensor.node, ()):
                    yield reader, write

    def _units(self, demands: Demands) -> dict[Vertex, list[Vertex]]:
        """Arguments replaced by each other's old contents (a, b = b, a): all at once or not."""
        replacing = [write for write in demands.writes if write.tensor.is_argument]
        replaced = {write.tensor.node for write in replacing}
        together: list[Vertex] = [
            write for write in replacing if self.reads[write].keys() & replaced
        ]
        return dict.fromkeys(together, together)

    def _producers(self, node: Node) -> list[Vertex]:
        """The vertices that make a source; none for graph inputs."""
        if node.op is Op.RESULT:
            return [node.inputs[0]]
        if is_member(node):
            return [node]
        return self.made_by[node] if node.op is not Op.INPUT else []

    def _edge(self, before: Cluster, after: Cluster) -> None:
        if before is not after:
            before.after.add(after)
            after.before.add(before)

    @property
    def clusters(self) -> list[Cluster]:
        return list(dict.fromkeys(self.cluster_of.values()))

    # --- merging

    def merge_all(self) -> None:
        """Producers with their consumers, then readers of one tensor, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for vertex in list(self.cluster_of):
                changed |= self._merge_with_producers(vertex)
            if not self.conservative:
                for vertex in list(self.cluster_of):
                    changed |= self._merge_with_siblings(vertex)

    def _merge_with_producers(self, vertex: Vertex) -> bool:
        changed = False
        if is_library_vertex(vertex):
            return False
        produced = [n for n in self.reads[vertex] if is_member(n)]
        for node in sorted(produced, key=self._bytes, reverse=True):
            changed |= self._try(self.cluster_of[node], self.cluster_of[vertex])
        return changed

    def _merge_with_siblings(self, vertex: Vertex) -> bool:
        """Another reader of the same tensor, where reading it once saves a fair part."""
        changed = False
        if is_library_vertex(vertex):
            return False
        for node in self.reads[vertex]:
            for other in self.readers[node]:
                ours, theirs = self.cluster_of[vertex], self.cluster_of[other]
                if ours is theirs or theirs.is_library or not self._pays(node, ours, theirs):
                    continue
                changed |= self._try(*sorted((ours, theirs), key=lambda c: c.position))
        return changed

    def _pays(self, node: Node, ours: Cluster, theirs: Cluster) -> bool:
        shared = self._bytes(node)
        least = min(self._traffic(ours), self._traffic(theirs))
        return 4 * shared >= least

    def _traffic(self, cluster: Cluster) -> int:
        inside = set(cluster.vertices)
        outside = {n for v in cluster.vertices for n in self.reads[v] if n not in inside}
        return sum(self._bytes(node) for node in outside)

    def _bytes(self, node: Node) -> int:
        return evaluate(node.type.bytes, self.hints)

    def _try(self, first: Cluster, second: Cluster) -> bool:
        if first is second or (first, second) in self.refusals:
            return False
        refusal = self._refusal(first, second)
        if refusal is not None:
            self.refusals[first, second] = refusal
            return False
        self._merge(first, second)
        return True

    def _refusal(self, first: Cluster, second: Cluster) -> Refusal | None:
        """None means yes. The first refusal wins, so the cheap checks come first."""
        for check in (_library, _size, self._cycle, self._conservative):
            refusal = check(first, second)
            if refusal is not None:
                return refusal
        return None if self._is_plain(first, second) else self._unstitchable(first, second)

    def _cycle(self, first: Cluster, second: Cluster) -> Refusal | None:
        if self._reaches(first, second) or self._reaches(second, first):
            return Refusal("cycle", "something between the two must run in between")
        return None

    def _conservative(self, first: Cluster, second: Cluster) -> Refusal | None:
        nodes = (vertex for vertex in first.vertices if isinstance(vertex, Node))
        if self.conservative and any(is_reduction(node.op) for node in nodes):
            return Refusal("conservative", "a reduction ends its kernel")
        return None

    def _unstitchable(self, first: Cluster, second: Cluster) -> Refusal | None:
        vertices = sorted([*first.vertices, *second.vertices], key=self._rank)
        return self._attempt(vertices)

    def refusal_of(self, cluster: Cluster) -> Refusal | None:
        """Why a whole cluster is not one kernel, if it is not."""
        return self._attempt(cluster.vertices)

    def obstacles(self) -> frozenset[Node]:
        """Reshapes that what is no kernel even alone cannot look through."""
        failed = [c for c, refusal in self.unstitchable.items() if refusal.check == "reshape"]
        return frozenset(
            node
            for cluster in failed
            for vertex in cluster.vertices
            for node in self.between(operands_of(vertex))
            if node.op is Op.RESHAPE
        )

    def _attempt(self, vertices: Sequence[Vertex]) -> Refusal | None:
        """Kept, since a cluster that was merged is looked at again when all are."""
        key = tuple(vertices)
        if key not in self.attempts:
            self.attempts[key] = self._stitched(vertices)
        return self.attempts[key]

    def _stitched(self, vertices: Sequence[Vertex]) -> Refusal | None:
        group = self.group(vertices)
        if any(write.value.type.dtype is DType.OPAQUE for write in group.writes):
            return Refusal(OPAQUE, "no kernel writes a type that only library calls touch")
        try:
            stitched = stitch([group], self.machine, "attempt")
        except Refused as refused:
            return refused.refusal
        problem = hazard(stitched.kernel, stitched.replaced)
        return Refusal("mutation", problem) if problem is not None else None

    def _is_plain(self, first: Cluster, second: Cluster) -> bool:
        """One elementwise node that reads values of its own shape, or things in memory: always
        legal, no need to try."""
        (vertex, *more) = second.vertices
        if more or not isinstance(vertex, Node) or not is_elementwise(vertex.op):
            return False
        if any(isinstance(v, Write) and v.tensor.is_argument for v in first.vertices):
            return False
        inside = set(first.vertices)
        return all(
            operand in inside or not self.sources((operand,)).keys() & inside
            for operand in vertex.inputs
        )

    def _reaches(self, start: Cluster, goal: Cluster) -> bool:
        """Whether a path leads from `start` to `goal` through some third cluster."""
        seen = {start, goal}
        work = [cluster for cluster in start.after if cluster is not goal]
        while work:
            cluster = work.pop()
            if cluster in seen:
                continue
            seen.add(cluster)
            if goal in cluster.after:
                return True
            work.extend(cluster.after)
        return False

    def _merge(self, first: Cluster, second: Cluster) -> None:
        vertices = sorted([*first.vertices, *second.vertices], key=self._rank)
        merged = Cluster(vertices, max(first.position, second.position))
        merged.before = (first.before | second.before) - {first, second}
        merged.after = (first.after | second.after) - {first, second}
        for cluster in merged.before:
            cluster.after = (cluster.after - {first, second}) | {merged}
        for cluster in merged.after:
            cluster.before = (cluster.before - {first, second}) | {merged}
        for vertex in vertices:
            self.cluster_of[vertex] = merged

    def _rank(self, vertex: Vertex) -> int:
        if isinstance(vertex, Node):
            return self.rank[vertex]
        return len(self.rank) + self.rank.get(vertex.value, 0)

    def split(self, cluster: Cluster) -> None:
        """Back to single vertices, where the whole turned out not to be one kernel."""
        for other in (*cluster.before, *cluster.after):
            other.before.discard(cluster)
            other.after.discard(cluster)
        inside = set(cluster.vertices)
        for vertex in cluster.vertices:
            unit = self.unit_of.get(vertex, [vertex])
            if self.cluster_of[vertex] is cluster:
                self.cluster_of |= dict.fromkeys(unit, Cluster(list(unit), self._rank(vertex)))
        for before, after in self.edges:
            if before in inside or after in inside:
                self._edge(self.cluster_of[before], self.cluster_of[after])

    def remaking(self, nodes: frozenset[Node]) -> Clustering:
        """The same clusters, but that whoever reads `nodes` makes them."""
        left = ([v for v in c.vertices if v not in nodes] for c in self.clusters)
        found = Clustering(
            *(self.graph, self.demands, self.machine, self.conservative),
            *(nodes, [vertices for vertices in left if vertices]),
        )
        changed = {v for v, reads in found.reads.items() if reads != self.reads[v]}
        for node in self.rank:
            if set(found.readers.get(node, ())) != set(self.readers.get(node, ())):
                changed.add(node)
        found.attempts = {
            tried: refusal
            for tried, refusal in self.attempts.items()
            if changed.isdisjoint(tried) and nodes.isdisjoint(tried)
        }
        return found

    def remade_in_vain(self) -> frozenset[Node]:
        """What clusters make again that are no kernel with it."""
        found: set[Node] = set()
        for cluster in self.clusters:
            remade = frozenset() if cluster.is_library else self.group(cluster.vertices).remade
            if remade and self.refusal_of(cluster) is not None:
                found |= remade
        return frozenset(found)

    # --- groups

    def group(self, vertices: Sequence[Vertex]) -> Group:
        """What the kernel of these vertices computes, reads and writes."""
        inside = set(vertices)
        own = [v for v in vertices if isinstance(v, Node)]
        writes = [v for v in vertices if isinstance(v, Write)]
        for node in own:
            outside = any(reader not in inside for reader in self.readers.get(node, ()))
            if outside or node in self.demanded:
                tensor = self._tensor(node)
                writes.append(Write(node, tensor, tensor.strides))
        read = {n for v in vertices for n in self.reads[v] if n not in inside}
        reads = {node: self._tensor(node) for node in sorted(read, key=lambda n: self.rank[n])}
        below = (node for v in vertices for node in self.between(operands_of(v)))
        remade = self.remade.intersection(below) if self.remade else self.remade
        members = sorted([*own, *remade], key=lambda n: self.rank[n])
        return Group(tuple(members), tuple(writes), reads, self.hints, remade)

    def _tensor(self, node: Node) -> Tensor:
        if node not in self.tensors:
            self.tensors[node] = Tensor(node, contiguous_strides(node.shape))
        return self.tensors[node]

    # --- what is read

    def _read_by(self, vertex: Vertex) -> dict[Node, None]:
        """A library call reads its operands' memory, and what a write puts there only the write."""
        if isinstance(vertex, Node) and vertex.op is Op.LIBRARY:
            found = (operand.tensor for operand in self.demands.operands[vertex])
            return {t.node: None for t in found if self.tensors.get(t.node) is t}
        return self.sources(operands_of(vertex))

    def sources(self, start: Iterable[Node]) -> dict[Node, None]:
        """The nodes in memory or computed elsewhere from which `start` is had."""
        return {node: None for node, is_source in self._walk(start) if is_source}

    def between(self, start: Iterable[Node]) -> list[Node]:
        """`start` and what is below, down to the sources: views, what is made inline or again."""
        return [node for node, is_source in self._walk(start) if not is_source]

    def _walk(self, start: Iterable[Node]) -> Iterator[tuple[Node, bool]]:
        """Each node down to the sources, and whether it is one."""
        seen: set[Node] = set()
        work = list(start)
        while work:
            node = work.pop()
            if node in seen:
                continue
            seen.add(node)
            is_source = is_member(node) or node.op in (Op.INPUT, Op.RESULT)
            is_source = (is_source and node not in self.remade) or node in self.demanded
            yield node, is_source
            if not is_source:
                work.extend(node.inputs)


def operands_of(vertex: Vertex) -> tuple[Node, ...]:
    return vertex.sources if isinstance(vertex, Write) else vertex.inputs
