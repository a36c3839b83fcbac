"""The gradient of what maxima are taken of is zero but in the few elements that are maxima.

Takes the gradient of a tensor [texts, channels, windows] in a traced graph; where it comes from
maxima along the windows, through operations that keep zeros, gives the elements that need not be
zero: their values, computed by the same operations on those elements alone, and their windows.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.traced_nodes import arguments_of, is_recomputed, name_of
from hemstitch.joint.axis_propagation import is_pointwise, shape_of
from hemstitch.joint.zero_propagation import is_zero, zero_where_all, zero_wherever

aten = torch.ops.aten

RANK, WINDOWS = 3, 2  # of such a tensor, and their axis
MAXIMA = ("adaptive_max_pool2d", "max_pool2d_with_indices", "max")
BACKWARD = ("adaptive_max_pool2d_backward", "max_pool2d_with_indices_backward")
SAME = ("squeeze", "unsqueeze", "view", "_unsafe_view", "detach", "alias")  # in another shape


@dataclass(frozen=True, slots=True)
class Pooled:
    """A gradient is the first of `path`, each of which is made of the next; the last one puts
    `given`, the gradient of `maxima`, at `index`. `maxima` gives the largest elements of its first
    argument, and their windows."""

    path: Sequence[Node]
    given: Node
    index: Node
    maxima: Node

    @property
    def shape(self) -> tuple[int, int, int]:
        """Texts, channels, and how many windows of each are maxima."""
        texts, channels, _ = shape_of(self.path[0])
        return texts, channels, shape_of(self.given)[-1]

    def elements(self, at: Node) -> tuple[Node, Node]:
        """Values, and the window of each. Those of one window, as where parts overlap, are to be
        added up."""
        windows = call_before(at, aten.reshape.default, self.index, [*self.shape])
        *above, last = self.path
        known = {last: call_before(at, aten.reshape.default, self.given, [*self.shape])}
        for node in reversed(above):
            if name_of(node) in SAME:
                known[node] = known[arguments_of(node)[0]]
            else:
                known[node] = self._made_of(at, node, windows, known)
        return known[self.path[0]], windows

    def _made_of(self, at: Node, node: Node, windows: Node, known: Mapping[Node, Node]) -> Node:
        made = {
            each: known[each] if each in known else self._element(at, each, windows)
            for each in node.all_input_nodes
        }
        arguments, keywords = map_arg((node.args, node.kwargs), made.__getitem__)
        return call_before(at, node.target, *arguments, **keywords)

    def _element(self, at: Node, node: Node, windows: Node) -> Node:
        """Of any tensor, in these windows."""
        if not shape_of(node):
            return node
        if _below(node) is _below(arguments_of(self.maxima)[0]):
            largest = call_before(at, operator.getitem, self.maxima, 0)
            return call_before(at, aten.reshape.default, largest, [*self.shape])
        if is_pointwise(node) and not is_recomputed(node):
            return self._made_of(at, node, windows, {})
        whole = call_before(at, aten.expand.default, node, [*shape_of(self.path[0])])
        return call_before(at, aten.gather.default, whole, WINDOWS, windows)


def pooled(gradient: Node) -> Pooled | None:
    """None if it comes from elsewhere."""
    path = _path(gradient)
    found = _placed(path[-1]) if path else None
    if found is None:
        return None
    given, index = found
    largest = _below(index)
    if largest.target is not operator.getitem or largest.args[1] != 1:
        return None
    maxima: Node = arguments_of(largest)[0]
    return Pooled(path, given, index, maxima) if name_of(maxima) in MAXIMA else None


def _path(gradient: Node) -> Sequence[Node]:
    """From there to what puts maxima among zeros; empty if there is nothing such."""
    waiting: list[tuple[Node, ...]] = [(gradient,)]
    seen = {gradient}
    while waiting:
        path = waiting.pop()
        if _placed(path[-1]) is not None:
            return path
        new = [operand for operand in _keeping_zeros(path[-1]) if operand not in seen]
        seen.update(new)
        waiting += [(*path, operand) for operand in new]
    return ()


def _keeping_zeros(node: Node) -> Iterator[Node]:
    """Operands that make the result zero wherever they are, element by element."""
    if is_recomputed(node):
        return
    if name_of(node) in SAME:
        yield from (x for x in node.all_input_nodes if _below(x) is _below(node))
    elif is_pointwise(node) and len(shape_of(node)) == RANK:
        together = zero_where_all(node)
        alone = together if len(together) == 1 else zero_wherever(node)
        yield from (x for x in alone if shape_of(x) == shape_of(node))


def _below(node: Node) -> Node:
    """What has the same elements in the same order, but for axes of one element."""
    while name_of(node) in SAME:
        x: Node = arguments_of(node)[0]
        if _without_ones(x) != _without_ones(node):
            break
        node = x
    return node


def _without_ones(node: Node) -> Sequence[int]:
    return [size for size in shape_of(node) if size != 1]


def _placed(node: Node) -> tuple[Node, Node] | None:
    """What an operation puts among zeros along windows, and at which."""
    match name_of(node), arguments_of(node):
        case name, (given, source, *_, index) if name in BACKWARD and shape_of(source)[-2] == 1:
            return given, index
        case "scatter", (zeros, 2 | -1, Node() as index, Node() as given) if is_zero(zeros):
            return given, index
    return None
