"""The work of a graph in planning: vertices, the values that they read, must-run-before edges.

A vertex is the unit of planning: a member node, a write of a value that is no member (a transposed
result, a mutated input), or a library call, which never merges. A member that every reader
rematerialises is no vertex; it is inlined, like a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Union

from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph, Node, Op, call_of, toposort
from hemstitch.ir.ops import is_call
from hemstitch.planning.intermediate_layout import orders, strides_in_order
from hemstitch.planning.materialised_views import Materialisation
from hemstitch.stitching.group import Group, Tensor, Write, is_member

Vertex = Union[Node, Write]


def is_library_vertex(vertex: Vertex) -> bool:
    return isinstance(vertex, Node) and is_call(vertex.op)


def operands_of(vertex: Vertex) -> tuple[Node, ...]:
    return vertex.sources if isinstance(vertex, Write) else vertex.inputs


def _has_no_result(effect: Node) -> bool:
    """Whether an effect has no result, such as a check: later writes must not happen if it
    fails."""
    return call_of(effect).results == (None,)


class Work:
    """The parts of the planning problem that are constant while clusters are merged."""

    def __init__(
        self,
        graph: Graph,
        materialisation: Materialisation,
        rematerialised: frozenset[Node] = frozenset(),
    ) -> None:
        self.graph = graph
        self.materialisation = materialisation
        self.hints = graph.hints
        self.rematerialised = rematerialised
        self.tensors = dict(materialisation.tensors)
        self.materialised = frozenset(materialisation.tensors)
        order = toposort(graph.roots)
        self.rank = {node: position for position, node in enumerate(order)}
        self._layouts = orders(order, self.tensors)
        members = [n for n in order if is_member(n) or is_call(n.op)]
        self.vertices: list[Vertex] = [
            *(n for n in members if n not in rematerialised),
            *materialisation.writes,
        ]
        self.writers_of: dict[Node, list[Vertex]] = {}
        for write in materialisation.writes:
            self.writers_of.setdefault(write.tensor.node, []).append(write)
        self.reads: dict[Vertex, dict[Node, None]] = {
            vertex: self._read_by(vertex) for vertex in self.vertices
        }
        self.readers: dict[Node, list[Vertex]] = {}
        for vertex, nodes in self.reads.items():
            for node in nodes:
                self.readers.setdefault(node, []).append(vertex)
        self._bytes: dict[Node, int] = {}
        self._groups: dict[tuple[Vertex, ...], Group] = {}
        self.edges = list(dict.fromkeys(self._orders(graph, materialisation)))
        self.unit_of = self._units(materialisation)

    def _orders(
        self, graph: Graph, materialisation: Materialisation
    ) -> Iterator[tuple[Vertex, Vertex]]:
        """The must-run-before pairs."""
        for vertex, nodes in self.reads.items():
            for node in nodes:
                for producer in self.producers(node):
                    yield producer, vertex
        for node, operands in materialisation.operands.items():
            read = {operand.tensor for operand in operands}
            for write in materialisation.writes:
                if write.tensor in read and not write.tensor.is_argument:
                    yield write, node
        yield from pairwise(graph.effects)
        checks = [node for node in graph.effects if _has_no_result(node)]
        for write in materialisation.writes:
            if write.tensor.is_argument:  # readers of the old contents come first
                for reader in (*self.readers.get(write.tensor.node, ()), *checks):
                    yield reader, write

    def _units(self, materialisation: Materialisation) -> dict[Vertex, list[Vertex]]:
        """Arguments replaced by each other's old contents (a, b = b, a), which one kernel must
        write."""
        replacing = [write for write in materialisation.writes if write.tensor.is_argument]
        replaced = {write.tensor.node for write in replacing}
        together: list[Vertex] = [
            write for write in replacing if self.reads[write].keys() & replaced
        ]
        return dict.fromkeys(together, together)

    def producers(self, node: Node) -> list[Vertex]:
        """The vertices that compute a source; none for graph inputs."""
        if node.op is Op.RESULT:
            return [node.inputs[0]]
        if is_member(node):
            return [node]
        return self.writers_of[node] if node.op is not Op.INPUT else []

    def position(self, vertex: Vertex) -> int:
        """In the program."""
        node = vertex if isinstance(vertex, Node) else vertex.value
        return self.rank.get(node, len(self.rank))

    def place(self, vertex: Vertex) -> int:
        """In a topological order: writes come after all nodes."""
        if isinstance(vertex, Node):
            return self.rank[vertex]
        return len(self.rank) + self.rank.get(vertex.value, 0)

    def bytes(self, node: Node) -> int:
        if node not in self._bytes:
            self._bytes[node] = evaluate(node.type.bytes, self.hints)
        return self._bytes[node]

    # --- groups

    def group(self, vertices: Sequence[Vertex]) -> Group:
        """The group of these vertices: what their kernel computes, reads and writes. Cached."""
        key = tuple(vertices)
        if key not in self._groups:
            self._groups[key] = self._group(key)
        return self._groups[key]

    def _group(self, vertices: tuple[Vertex, ...]) -> Group:
        inside = set(vertices)
        own = [v for v in vertices if isinstance(v, Node)]
        writes = [v for v in vertices if isinstance(v, Write)]
        for node in own:
            outside = any(reader not in inside for reader in self.readers.get(node, ()))
            if outside or node in self.materialised:
                tensor = self._tensor(node)
                writes.append(Write(node, tensor, tensor.strides))
        read = {n for v in vertices for n in self.reads[v] if n not in inside}
        reads = {node: self._tensor(node) for node in sorted(read, key=lambda n: self.rank[n])}
        below = (node for v in vertices for node in self.between(operands_of(v)))
        rematerialised = (
            self.rematerialised.intersection(below) if self.rematerialised else self.rematerialised
        )
        members = sorted([*own, *rematerialised], key=lambda n: self.rank[n])
        return Group(tuple(members), tuple(writes), reads, self.hints, rematerialised)

    def _tensor(self, node: Node) -> Tensor:
        if node not in self.tensors:
            order = self._layouts.get(node, range(node.type.rank))
            self.tensors[node] = Tensor(node, strides_in_order(node.shape, order))
        return self.tensors[node]

    # --- what is read

    def _read_by(self, vertex: Vertex) -> dict[Node, None]:
        """The sources of a vertex. A library call reads the memory of its operands; the sources of
        a write into that memory belong to the write. The call also reads results that another call
        has written in place there."""
        if isinstance(vertex, Node) and is_call(vertex.op):
            operands = (operand.tensor for operand in self.materialisation.operands[vertex])
            operand_nodes = {t.node: None for t in operands if self.tensors.get(t.node) is t}
            replaced = self.materialisation.in_place.intersection(self.sources(vertex.inputs))
            return operand_nodes | dict.fromkeys(sorted(replaced, key=lambda node: self.rank[node]))
        return self.sources(operands_of(vertex))

    def sources(self, start: Iterable[Node]) -> dict[Node, None]:
        """The nodes in memory or of other vertices from which `start` is computed."""
        return {node: None for node, is_source in self._walk(start) if is_source}

    def between(self, start: Iterable[Node]) -> list[Node]:
        """`start` and the nodes below, down to the sources: views, inlined and rematerialised
        nodes."""
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
            is_source = (is_source and node not in self.rematerialised) or node in self.materialised
            yield node, is_source
            if not is_source:
                work.extend(node.inputs)
