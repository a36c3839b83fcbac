"""Constant folding of frozen weights: splits a graph into the part that depends only on them, and
the rest.

The first part runs once; its results are frozen arguments of the rest. Views of weights stay with
their readers. A result larger than the weights that it is computed from stays too: 8-bit weights,
for example, are read faster than their dequantised form. Without widening, a result may have up to
`MAX_GROWTH` times the bytes of its weights, as Winograd-transformed weights do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import LibraryCall, holds_operands, may_keep_operands
from hemstitch.ir.dims import SymbolicDim, known
from hemstitch.ir.graph import Graph, InputAttr, Node, Op, Output, Range, result_strides, toposort
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import contiguous_strides
from hemstitch.rewrites.engine import substitute

Leaves = frozenset[Node]
MAX_GROWTH = 3  # bytes of a result per byte of its weights


def frozen_leaves(graph: Graph) -> dict[Node, Leaves]:
    """For each value that is equal in every call, the frozen inputs that it depends on; an empty
    set for a constant."""
    leaves: dict[Node, Leaves] = {}
    effects = set(graph.effects)
    for node in toposort(graph.roots):
        if node in effects or not _has_known_sizes(node):
            continue
        if node.op is Op.INPUT:
            if _is_frozen(node):
                leaves[node] = frozenset((node,))
        elif all(source in leaves for source in node.inputs):
            leaves[node] = frozenset[Node]().union(*(leaves[source] for source in node.inputs))
    return leaves


def split_weight_work(graph: Graph, builder: Builder, first: int) -> tuple[Graph | None, Graph]:
    """The graph that runs once, or None, and the graph of each call. The results of the former are
    arguments of the latter, from position `first` on."""
    results = _results(graph, frozen_leaves(graph))
    if not results:
        return None, graph
    outputs: list[Output] = []
    arguments: dict[Node, Node] = {}
    for position, node in enumerate(results, first):
        strides = result_strides(node) if node.op is Op.RESULT else contiguous_strides(node.shape)
        outputs.append(Output(node, strides, may_share=True))
        dtype, name = node.type.dtype, f"once{position - first}"
        arguments[node] = builder.input(name, position, node.shape, dtype, strides, frozen=True)
    read = set(toposort(output.value for output in outputs))
    inputs = tuple(node for node in graph.inputs if node in read)
    weight_graph = Graph(inputs, tuple(outputs), origins=graph.origins)
    rest = substitute(graph, arguments, builder)
    return weight_graph, replace(rest, inputs=(*graph.inputs, *arguments.values()))


def _is_frozen(node: Node) -> bool:
    assert isinstance(node.attr, InputAttr)
    return node.attr.frozen


def _has_known_sizes(node: Node) -> bool:
    """Whether no symbolic size enters the node."""
    attr = node.attr
    sizes: list[object] = [*node.shape, attr]
    if isinstance(attr, tuple):
        sizes += (part.start for part in attr if isinstance(part, Range))
    elif isinstance(attr, LibraryCall):
        sizes += _leaves_of((attr.arguments, attr.keywords))
    return not any(isinstance(size, SymbolicDim) for size in sizes)


def _leaves_of(arguments: object) -> list[object]:
    if not isinstance(arguments, tuple):
        return [arguments]
    return [leaf for part in arguments for leaf in _leaves_of(part)]


def _results(graph: Graph, leaves: Mapping[Node, Leaves]) -> list[Node]:
    """The frozen values that other nodes read, in topological order; in place of one that is not
    worth its memory, the values that it is computed from."""
    nodes = toposort(graph.roots)
    readers = [node for node in nodes if node not in leaves]
    pending = [source for node in readers for source in node.inputs]
    results: dict[Node, None] = {}
    # The program may write to the base of a view that a library call returns.
    visited = {
        _below(source) for node in readers if _may_alias_operands(node) for source in node.inputs
    }
    while pending:
        node = pending.pop()
        if node in visited or not leaves.get(node):
            continue
        visited.add(node)
        if _is_worth_keeping(node, leaves[node]):
            results[node] = None
        else:
            pending.extend(node.inputs)
    return [node for node in nodes if node in results]


def _may_alias_operands(node: Node) -> bool:
    """Whether the results of `node` may alias its operands."""
    return holds_operands(node.attr) or may_keep_operands(node.attr)


def _below(node: Node) -> Node:
    while _is_unary_view(node):
        (node,) = node.inputs
    return node


def _is_unary_view(node: Node) -> bool:
    return is_view(node.op) and len(node.inputs) == 1


def _is_worth_keeping(node: Node, leaves: Leaves) -> bool:
    if node.op is Op.INPUT or _is_unary_view(node):
        return False
    weight_bytes = sum(known(leaf.type.bytes) for leaf in leaves)
    is_wider = any(leaf.type.dtype.bytes < node.type.dtype.bytes for leaf in leaves)
    limit = weight_bytes if is_wider else MAX_GROWTH * weight_bytes
    return node.op is Op.RESULT or known(node.type.bytes) <= limit
