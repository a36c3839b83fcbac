"""Clusters of vertices that become kernels: a partition of the work, with legal merges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Union

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import combines, is_elementwise
from hemstitch.planning.topological_order import Cluster, is_cycle, join, merge, number
from hemstitch.planning.trials import Trials
from hemstitch.planning.work import Vertex, Work, operands_of
from hemstitch.stitching.group import Group, Write
from hemstitch.stitching.refusal import Refusal

MOST_MEMBERS = 160  # vertices of a kernel; bounds planning time and code size
MAX_MATMULS = 16  # of a kernel; each has as much code as a small kernel
Check = Callable[[Cluster, Cluster], Union[Refusal, None]]


def _library(first: Cluster, second: Cluster) -> Refusal | None:
    if first.is_library or second.is_library:
        return Refusal("library", "a library call is opaque")
    return None


def _is_cast(vertex: Vertex) -> bool:
    return isinstance(vertex, Node) and vertex.op is Op.CAST


class Clustering:
    """The clusters of a graph during merging."""

    def __init__(
        self,
        work: Work,
        trials: Trials,
        merged: Iterable[Sequence[Vertex]] = (),
        *,
        conservative: bool = False,
        inside: Clustering | None = None,
        more: tuple[Check, ...] = (),
        units: Sequence[Sequence[Vertex]] = (),
    ) -> None:
        """`merged`: vertices that form one cluster from the start. `conservative`: a reduction ends
        its kernel. `inside`: clusters stay within those of another clustering. `more`: further
        checks that may refuse a merge. `units`: vertices that count as one in the size limit."""
        self.work = work
        self.trials = trials
        self.conservative = conservative
        self.inside = inside
        own = (self._size, self._inside, self._cycle, self._conservative, self._matmuls)
        self.checks = (_library, *own, *more)
        self.refusals: dict[tuple[Cluster, Cluster], Refusal] = {}
        self.lasting: dict[Cluster, dict[Cluster, Refusal]] = {}  # of pairs, in both orders
        self._bytes_read: dict[Cluster, int] = {}
        self._counts: dict[Cluster, int] = {}
        self.unstitchable: dict[Cluster, Refusal] = {}  # clusters that are no kernel
        self.units = units
        self._unit = {vertex: number for number, unit in enumerate(units) for vertex in unit}
        members_of = work.unit_of | {v: list(cluster) for cluster in merged for v in cluster}
        self.cluster_of: dict[Vertex, Cluster] = {}
        for vertex in work.vertices:
            if vertex not in self.cluster_of:
                unit = members_of.get(vertex, [vertex])
                position = max(map(work.position, unit))
                self.cluster_of |= dict.fromkeys(unit, Cluster(list(unit), position))
        for before, after in work.edges:
            join(self.cluster_of[before], self.cluster_of[after])
        number(self.clusters)

    @property
    def clusters(self) -> list[Cluster]:
        return list(dict.fromkeys(self.cluster_of.values()))

    # --- merging

    def try_merge(self, first: Cluster, second: Cluster, *, trust: bool = False) -> bool:
        """Merges two clusters, if that is legal, and returns whether it did. `trust`: assume that
        what passes the cheap checks can be stitched. Raises OutOfTime."""
        self.trials.deadline.check()
        if first is second or (first, second) in self.refusals:
            return False
        refusal = self._refusal(first, second, trust)
        if refusal is not None:
            self.refusals[first, second] = refusal
            if refusal.lasts:
                self._remember_refusal(first, second, refusal)
            return False
        self._merge(first, second)
        return True

    def _refusal(self, first: Cluster, second: Cluster, trust: bool) -> Refusal | None:
        """The first refusal, or None; cheap checks come first."""
        for check in self.checks:
            refusal = check(first, second)
            if refusal is not None:
                return refusal
        if trust or self._is_plain(first, second):
            return None
        known = self.lasting.get(first, {}).get(second)
        return known or self._attempt(self._merged_vertices(first, second))

    def _size(self, first: Cluster, second: Cluster) -> Refusal | None:
        if len(first.vertices) + len(second.vertices) <= MOST_MEMBERS:
            return None
        if self._members(first) + self._members(second) <= MOST_MEMBERS:
            return None
        return Refusal("size", f"more than {MOST_MEMBERS} nodes")

    def _members(self, cluster: Cluster) -> int:
        """The size of a cluster without casts, since half types have one per operation."""
        units = {self._unit[v] for v in cluster.vertices if v in self._unit}
        vertices = (v for v in cluster.vertices if v not in self._unit)
        return len(units) + sum(not _is_cast(v) for v in vertices)

    def _cycle(self, first: Cluster, second: Cluster) -> Refusal | None:
        if is_cycle(first, second):
            return Refusal("cycle", "a third cluster must run between the two")
        return None

    def may_merge(self, first: Vertex, second: Vertex) -> bool:
        """Whether two vertices are in different clusters that could become one."""
        whole = self.inside.cluster_of if self.inside else {}
        is_apart = self.cluster_of[first] is not self.cluster_of[second]
        return is_apart and whole.get(first) is whole.get(second)

    def _inside(self, first: Cluster, second: Cluster) -> Refusal | None:
        if not self.may_merge(first.vertices[0], second.vertices[0]):
            return Refusal("inside", "they are in different clusters of the enclosing plan")
        return None

    def _conservative(self, first: Cluster, second: Cluster) -> Refusal | None:
        nodes = (vertex for vertex in first.vertices if isinstance(vertex, Node))
        if self.conservative and any(combines(node.op) for node in nodes):
            return Refusal("conservative", "a reduction or scan ends its kernel")
        return None

    def _matmuls(self, first: Cluster, second: Cluster) -> Refusal | None:
        counts = self._count(first), self._count(second)
        if all(counts) and sum(counts) > MAX_MATMULS:  # a single call may have more
            return Refusal("size", f"more than {MAX_MATMULS} matmuls")
        return None

    def _count(self, cluster: Cluster) -> int:
        """The number of matmuls of a cluster."""
        if cluster not in self._counts:
            nodes = (vertex for vertex in cluster.vertices if isinstance(vertex, Node))
            self._counts[cluster] = sum(node.op is Op.DOT for node in nodes)
        return self._counts[cluster]

    def _merged_vertices(self, first: Cluster, second: Cluster) -> tuple[Vertex, ...]:
        return tuple(sorted([*first.vertices, *second.vertices], key=self.work.place))

    def refusal_of(self, cluster: Cluster) -> Refusal | None:
        """Why a cluster is no kernel, or None."""
        return self._attempt(cluster.vertices)

    def _attempt(self, vertices: Sequence[Vertex]) -> Refusal | None:
        return self.trials.refusal(self.work.group(vertices))

    def _is_plain(self, first: Cluster, second: Cluster) -> bool:
        """Whether `second` is one elementwise node that reads values of its own shape, or from
        memory, and no operand of a matmul of `first`. Then the merge is legal without a trial."""
        (vertex, *more) = second.vertices
        if more or not isinstance(vertex, Node) or not is_elementwise(vertex.op):
            return False
        writes = [v for v in first.vertices if isinstance(v, Write)]
        read = self.work.reads[vertex]
        if any(write.tensor.is_argument or write.tensor.node in read for write in writes):
            return False
        inside = set(first.vertices)
        matmuls = (n for n in inside if isinstance(n, Node) and n.op is Op.DOT)
        if any(node in read for matmul in matmuls for node in self.work.reads[matmul]):
            return False
        return all(
            operand in inside or not self.work.sources((operand,)).keys() & inside
            for operand in vertex.inputs
        )

    def _merge(self, first: Cluster, second: Cluster) -> None:
        vertices = self._merged_vertices(first, second)
        merged = merge(first, second, list(vertices))
        self.cluster_of |= dict.fromkeys(vertices, merged)
        for part in (first, second):
            for neighbour, refusal in self.lasting.get(part, {}).items():
                self._remember_refusal(merged, neighbour, refusal)

    def _remember_refusal(self, first: Cluster, second: Cluster, refusal: Refusal) -> None:
        self.lasting.setdefault(first, {})[second] = refusal
        self.lasting.setdefault(second, {})[first] = refusal

    def split_unstitchable(self) -> None:
        """Splits clusters that cannot be stitched along their tree of merges, down to parts that
        can."""
        merged = (c for c in self.clusters if not c.is_library and len(c.vertices) > 1)
        failed = dict.fromkeys(c for c in merged if self.refusal_of(c) is not None)
        for cluster in failed:
            for neighbour in (*cluster.before, *cluster.after):
                neighbour.before.discard(cluster)
                neighbour.after.discard(cluster)
        inside = {vertex for cluster in failed for vertex in cluster.vertices}
        for piece in (piece for cluster in failed for piece in self._pieces(cluster)):
            position = max(self.work.position(vertex) for vertex in piece)
            self.cluster_of |= dict.fromkeys(piece, Cluster(list(piece), position))
        for before, after in self.work.edges if failed else ():
            if before in inside or after in inside:
                join(self.cluster_of[before], self.cluster_of[after])
        number(self.clusters)

    def _pieces(self, cluster: Cluster) -> Iterator[Sequence[Vertex]]:
        """The largest subtrees of merges that are kernels. A binary search along the larger halves
        finds the merge that made the cluster unstitchable."""
        if not cluster.parts:
            units = (self.work.unit_of.get(vertex, [vertex]) for vertex in cluster.vertices)
            yield from dict.fromkeys(map(tuple, units))
            return
        spine = [cluster]
        while spine[-1].parts:
            spine.append(max(spine[-1].parts, key=lambda part: len(part.vertices)))
        low, high = 0, len(spine) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.refusal_of(spine[middle]) is None:
                high = middle
            else:
                low = middle
        yield spine[high].vertices
        for above, below in pairwise(spine[: high + 1]):
            (sibling,) = (part for part in above.parts if part is not below)
            is_kernel = not sibling.parts or self.refusal_of(sibling) is None
            yield from [sibling.vertices] if is_kernel else self._pieces(sibling)

    def settle(self) -> None:
        """Splits unstitchable clusters, and records those that cannot be split."""
        self.split_unstitchable()
        for cluster in self.clusters:
            refusal = None if cluster.is_library else self.refusal_of(cluster)
            if refusal is not None:
                self.unstitchable[cluster] = refusal

    def fusion_barriers(self) -> frozenset[Node]:
        """Reshapes below single nodes that cannot be stitched because of them."""
        failed = [c for c, refusal in self.unstitchable.items() if refusal.check == "reshape"]
        return frozenset(
            node
            for cluster in failed
            for vertex in cluster.vertices
            for node in self.work.between(operands_of(vertex))
            if node.op is Op.RESHAPE
        )

    # --- rematerialisation

    def rematerialising(self, nodes: frozenset[Node]) -> Clustering:
        """The same clusters, with `nodes` rematerialised by their readers."""
        left = ([v for v in c.vertices if v not in nodes] for c in self.clusters)
        merged = [vertices for vertices in left if vertices]
        work = Work(self.work.graph, self.work.materialisation, nodes)
        conservative, units = self.conservative, self.units
        return Clustering(work, self.trials, merged, conservative=conservative, units=units)

    def refused_rematerialisation(self) -> frozenset[Node]:
        """Rematerialised nodes of clusters that cannot be stitched with them."""
        refused: set[Node] = set()
        for cluster in self.clusters:
            rematerialised = (
                frozenset() if cluster.is_library else self.group_of(cluster).rematerialised
            )
            if rematerialised and self.refusal_of(cluster) is not None:
                refused |= rematerialised
        return frozenset(refused)

    # --- properties of clusters

    def bytes_read(self, cluster: Cluster) -> int:
        """Bytes of values that other clusters compute or that are in memory."""
        if cluster not in self._bytes_read:
            work, inside = self.work, set(cluster.vertices)
            outside = {n for v in cluster.vertices for n in work.reads[v] if n not in inside}
            self._bytes_read[cluster] = sum(map(work.bytes, outside))
        return self._bytes_read[cluster]

    def group_of(self, cluster: Cluster) -> Group:
        return self.work.group(cluster.vertices)
