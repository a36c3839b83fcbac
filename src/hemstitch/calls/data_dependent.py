"""Graphs with data-dependent sizes, as of `nonzero` and `item`. They are split into parts that are
compiled, with the operations that compute the sizes between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hemstitch.capture.device_target import traced_tensors
from hemstitch.capture.effects import has_effects
from hemstitch.capture.runtime_assertions import NUMBERS
from hemstitch.capture.traced_nodes import is_view, value_of

BINDINGS = "unbacked_bindings"  # where a trace notes the symbols that a node gives values to
Boxed = Callable[[list[Any]], Sequence[Any]]
Compile = Callable[[GraphModule, Sequence[object]], Boxed]


@dataclass(frozen=True, slots=True)
class _Part:
    """`calls`: what is compiled, in the order of the trace; `sizes`: what gives sizes, behind."""

    calls: dict[Node, None] = field(default_factory=dict)
    sizes: dict[Node, None] = field(default_factory=dict)


class _PartCall(torch.nn.Module):
    """Of a compiled part, with its arguments one by one."""

    def __init__(self, run: Boxed) -> None:
        super().__init__()
        self.run = run

    def forward(self, *arguments: Any) -> Sequence[Any]:
        return self.run([*arguments])


def has_sizes_from_data(gm: GraphModule) -> bool:
    """Whether tensor sizes depend on data. Other numbers that are read from data need no split."""
    arguments = gm.graph.find_nodes(op="placeholder")
    argument_symbols = {
        symbol for node in arguments for symbol in free_unbacked_symbols(node.meta.get("val"))
    }
    tensors = (x for node in gm.graph.nodes for x in traced_tensors(node))
    return any(not free_unbacked_symbols(tensor) <= argument_symbols for tensor in tensors)


def in_parts(gm: GraphModule, compiled: Compile) -> GraphModule:
    """`gm`, where a call of what `compiled` makes of a part takes the place of that. Results that
    are views are made by PyTorch's operations, and share memory as in the trace."""
    whole, graph = GraphModule(gm, Graph()), Graph()
    values: dict[Node, Node] = {}
    for argument in gm.graph.find_nodes(op="placeholder"):
        _copy(graph, argument, values)
    output = gm.graph.output_node()
    parts = _divided(gm.graph)
    reads = [_needed(_inputs(part.calls), _is_number, part.calls) for part in parts]
    between = _needed(_inputs(x for part in parts for x in part.sizes), _is_number)
    needed = {*between, *_needed(output.all_input_nodes, _is_number_or_view)}.union(*reads)
    for number, (part, arguments) in enumerate(zip(parts, reads)):
        results = [node for node in part.calls if node in needed]
        if results or any(map(has_effects, part.calls)):
            run = compiled(_alone(gm, arguments, part.calls, results), [*map(value_of, arguments)])
            name = f"part_{number}"
            whole.add_module(name, _PartCall(run))
            call = graph.call_module(name, tuple(_copy(graph, x, values) for x in arguments))
            for place, result in enumerate(results):
                values[result] = graph.call_function(operator.getitem, (call, place))
        for node in part.sizes:
            _copy(graph, node, values)
    graph.output(torch.fx.map_arg(output.args[0], lambda x: _copy(graph, x, values)))
    whole.graph = graph
    return whole


def _divided(graph: Graph) -> list[_Part]:
    """All calls but those of numbers, each behind what gives sizes on the way to it. Effects stay
    in order; what writes to an argument is behind all that the trace has before."""
    numbers: dict[Node, int] = {}
    parts = [_Part()]
    ordered = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        inputs = [x for x in node.all_input_nodes if x in numbers]
        ends = [numbers[x] + (_gives_sizes(x) and not _gives_sizes(node)) for x in inputs]
        number = max(ends, default=0)
        if has_effects(node):
            number = ordered = max(number, len(parts) - 1 if _writes(node) else ordered)
        numbers[node] = number
        while len(parts) <= number:
            parts.append(_Part())
        if _gives_sizes(node):
            parts[number].sizes[node] = None
        elif not _is_number(node):
            parts[number].calls[node] = None
    return parts


def _gives_sizes(node: Node) -> bool:
    """It brings symbols, or is one of several results of what does, or reads how a tensor lies."""
    if node.meta.get(BINDINGS):
        return True
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and _gives_sizes(node.args[0])
    is_number = isinstance(node.meta.get("val"), NUMBERS)
    return is_number and any(map(_is_tensor, node.all_input_nodes))


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_number(node: Node) -> bool:
    """Arithmetic of sizes, and constants: rematerialised in each part that reads them."""
    is_size = isinstance(node.meta.get("val"), NUMBERS) and not _gives_sizes(node)
    return node.op == "get_attr" or (node.op == "call_function" and is_size)


def _is_number_or_view(node: Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    assert isinstance(source, Node)
    return _is_number(node) or is_view(source)


def _needed(
    nodes: Iterable[Node], is_anew: Callable[[Node], bool], inside: Container[Node] = ()
) -> list[Node]:
    """The nodes outside `inside` that `nodes` depend on. Nodes with `is_anew` are recomputed, and
    replaced by their own inputs."""
    stack, visited = [*nodes], dict[Node, None]()
    while stack:
        node = stack.pop()
        if node not in visited and node not in inside:
            visited[node] = None
            stack += node.all_input_nodes if is_anew(node) else ()
    return [node for node in visited if not is_anew(node)]


def _inputs(nodes: Iterable[Node]) -> list[Node]:
    return [x for node in nodes for x in node.all_input_nodes]


def _alone(
    gm: GraphModule, arguments: Iterable[Node], calls: Iterable[Node], results: Iterable[Node]
) -> GraphModule:
    """A part as a graph of its own."""
    graph = Graph()
    values: dict[Node, Node] = {}
    for argument in arguments:
        values[argument] = graph.placeholder(argument.name)
        values[argument].meta = {**argument.meta}
    for node in calls:
        _copy(graph, node, values)
    graph.output(tuple(values[result] for result in results))
    return GraphModule(gm, graph)


def _copy(graph: Graph, node: Node, values: dict[Node, Node]) -> Node:
    """With all that it is computed of and `values` lacks."""
    if node not in values:
        values[node] = graph.node_copy(node, lambda x: _copy(graph, x, values))
    return values[node]
