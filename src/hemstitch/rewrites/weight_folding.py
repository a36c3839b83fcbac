"""What frozen weights alone decide, apart from the rest: calls compute it once. Takes a graph as
planning would, gives that part, whose results are new arguments of the other.

What crosses is what was computed: views of weights stay where their readers are, and so does what
is larger than the weights that it is made of. Weights of eight bits, for one, are read in less time
than what they become. Of as wide elements there may be some more (`MOST_TIMES`), as of Winograd's
sums.
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
MOST_TIMES = 3  # as many elements as those that they are made of


def frozen_leaves(graph: Graph) -> dict[Node, Leaves]:
    """Of each value that is the same in every call: the frozen inputs that it is made of, none for
    a constant."""
    found: dict[Node, Leaves] = {}
    effects = set(graph.effects)
    for node in toposort(graph.roots):
        if node in effects or not _has_known_sizes(node):
            continue
        if node.op is Op.INPUT:
            if _is_frozen(node):
                found[node] = frozenset((node,))
        elif all(source in found for source in node.inputs):
            found[node] = frozenset[Node]().union(*(found[source] for source in node.inputs))
    return found


def split_weight_work(graph: Graph, builder: Builder, first: int) -> tuple[Graph | None, Graph]:
    """The graph of what is computed once, if anything is, and that of each call, which finds its
    results at the arguments from position `first` on."""
    kept = _kept(graph, frozen_leaves(graph))
    if not kept:
        return None, graph
    outputs: list[Output] = []
    given: dict[Node, Node] = {}
    for position, node in enumerate(kept, first):
        strides = result_strides(node) if node.op is Op.RESULT else contiguous_strides(node.shape)
        outputs.append(Output(node, strides, may_share=True))
        dtype, name = node.type.dtype, f"once{position - first}"
        given[node] = builder.input(name, position, node.shape, dtype, strides, frozen=True)
    read = set(toposort(output.value for output in outputs))
    inputs = tuple(node for node in graph.inputs if node in read)
    once = Graph(inputs, tuple(outputs), origins=graph.origins)
    rest = substitute(graph, given, builder)
    return once, replace(rest, inputs=(*graph.inputs, *given.values()))


def _is_frozen(node: Node) -> bool:
    assert isinstance(node.attr, InputAttr)
    return node.attr.frozen


def _has_known_sizes(node: Node) -> bool:
    """Whatever the sizes of a call."""
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


def _kept(graph: Graph, leaves: Mapping[Node, Leaves]) -> list[Node]:
    """What others read; in its stead what it is made of, where it is not worth its memory."""
    nodes = toposort(graph.roots)
    readers = [node for node in nodes if node not in leaves]
    work = [source for node in readers for source in node.inputs]
    found: dict[Node, None] = {}
    # Of a view by the library the program might write to what it looks at.
    seen = {_below(source) for node in readers if _is_held_by(node) for source in node.inputs}
    while work:
        node = work.pop()
        if node in seen or not leaves.get(node):
            continue
        seen.add(node)
        if _is_worth_keeping(node, leaves[node]):
            found[node] = None
        else:
            work.extend(node.inputs)
    return [node for node in nodes if node in found]


def _is_held_by(node: Node) -> bool:
    return holds_operands(node.attr) or may_keep_operands(node.attr)


def _below(node: Node) -> Node:
    while _is_one_view(node):
        (node,) = node.inputs
    return node


def _is_one_view(node: Node) -> bool:
    return is_view(node.op) and len(node.inputs) == 1


def _is_worth_keeping(node: Node, leaves: Leaves) -> bool:
    if node.op is Op.INPUT or _is_one_view(node):
        return False
    made_of = sum(known(leaf.type.bytes) for leaf in leaves)
    is_wider = any(leaf.type.dtype.bytes < node.type.dtype.bytes for leaf in leaves)
    most = made_of if is_wider else MOST_TIMES * made_of
    return node.op is Op.RESULT or known(node.type.bytes) <= most
