"""Backward passes of programs that differentiate only some of a graph's results: of a model's loss
and its scores, the loss.

For the others autograd has no gradient, and AOTAutograd's graphs want zeros: as large as the
scores, made, read and added in every step. Here such a graph is cut down to what the gradients that
there are go through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.fx import GraphModule, Node

from hemstitch.calls.argument_checks import arguments_of_graph, check_arguments
from hemstitch.capture.effects import drop_unread
from hemstitch.capture.traced_nodes import formulas, value_of
from hemstitch.fallback import copied
from hemstitch.joint.zero_propagation import zero_wherever

aten = torch.ops.aten
Boxed = Callable[[list[Any]], Sequence[Any]]

LEAST_BYTES = 1 << 17  # of a gradient that is worth a graph without it


class Backward:
    """A backward pass on a list of arguments. Gradients of results may be None instead of zeros;
    it pays for those of `optional`. For each choice of them there is a graph, compiled when it is
    needed first."""

    def __init__(self, compiled: Callable[[GraphModule], Boxed], traced: GraphModule) -> None:
        self._boxed_call = True
        self._compiled = compiled
        self._traced = traced
        self._runs: dict[tuple[int, ...], Boxed] = {}
        self._tangents = _tangents(traced)
        self.optional = tuple(place for place, value in self._tangents.items() if _is_large(value))
        self.expected = arguments_of_graph(traced)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """As AOTAutograd calls it, with zeros for what is not there, or None beside arguments that
        the program has written to."""
        check_arguments(self.expected, arguments, self._tangents)
        for place in self.optional:
            if arguments[place] is not None and not arguments[place].any():
                arguments[place] = None
        return self.without_zeros(arguments)

    def without_zeros(self, arguments: list[Any]) -> Sequence[Any]:
        missing = tuple(place for place in self._tangents if arguments[place] is None)
        if missing not in self._runs:
            self._runs[missing] = self._compiled(without(self._traced, missing))
        return self._runs[missing](arguments)


def with_zeros(run: Boxed, backward: GraphModule) -> Boxed:
    """`run`, where zeros may be left out."""
    values = [*map(value_of, _arguments(backward.graph))]

    def materialised(arguments: list[Any]) -> Sequence[Any]:
        for place, (argument, value) in enumerate(zip(arguments, values, strict=True)):
            if argument is None and isinstance(value, Tensor):
                zeros = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
                arguments[place] = zeros
        return run(arguments)

    return materialised


def without(backward: GraphModule, places: Collection[int]) -> GraphModule:
    """The same graph where the arguments at these places are zeros; it does not read them."""
    if not places:
        return backward
    graph = copied(backward).graph
    zeros = {node for place, node in enumerate(_arguments(graph)) if place in places}
    for node in graph.nodes:
        if node.op == "call_function" and not zeros.isdisjoint(node.all_input_nodes):
            other = _other_addend(node, zeros)
            if other is not None:
                node.replace_all_uses_with(other)
            elif _is_zero(node, zeros):
                zeros.add(node)
    for node in zeros:
        _replace_by_zeros(node, [user for user in node.users if user not in zeros])
    drop_unread(graph)
    return GraphModule(backward, graph)


def _tangents(traced: GraphModule) -> dict[int, object]:
    """Gradients of results, by place."""
    arguments = enumerate(_arguments(traced.graph))
    return {n: value_of(a) for n, a in arguments if str(a.target).startswith("tangents")}


def _is_large(value: object) -> bool:
    """And of known size, in the processor's memory."""
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return False
    is_known = all(isinstance(size, int) for size in value.shape)
    return is_known and value.numel() * value.element_size() >= LEAST_BYTES


def _arguments(graph: torch.fx.Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _other_addend(node: Node, zeros: Collection[Node]) -> Node | None:
    """What the sum of it and zeros is, or the difference."""
    if node.target not in (aten.add.Tensor, aten.sub.Tensor) or len(node.args) != 2:
        return None
    first, second = node.args
    is_sum = node.target is aten.add.Tensor and not node.kwargs
    other = first if second in zeros else second if is_sum else None
    if not isinstance(other, Node) or other in zeros or _type(other) != _type(node):
        return None
    return other


def _is_zero(node: Node, zeros: Collection[Node]) -> bool:
    if node.target is aten.add.Tensor:
        return all(argument in zeros for argument in node.args)
    return any(operand in zeros for operand in zero_wherever(node))


def _type(node: Node) -> object:
    value = value_of(node)
    return (formulas(value.shape), value.dtype) if isinstance(value, Tensor) else None


def _replace_by_zeros(node: Node, users: Sequence[Node]) -> None:
    if not users:
        return
    value = node.meta["val"]
    with node.graph.inserting_before(min(users)):
        new = node.graph.call_function(
            aten.full.default,
            ([*value.shape], 0),
            {"dtype": value.dtype, "device": value.device},
        )
    new.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
    for user in users:
        user.replace_input_with(node, new)
