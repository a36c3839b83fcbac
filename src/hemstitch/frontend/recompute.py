"""Which values of the forward pass its backward pass computes again, in a joint graph.

A value that follows elementwise from one large tensor that is in memory anyway, and from small
ones, is not worth keeping: forward would have to write it, and backward reads as much either way.
What forward has to write (the result of a ReLU) is not worth reading again where backward reads
that large tensor for something else too.
FusionStitching (2020, section 4) weighs computing again against traffic within a kernel; this does
so between the two passes.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.frontend.rules import RULES

SMALL = 16  # times smaller than the value: statistics of rows, biases
MOST_OPERATIONS = 8  # computed again for one value
UNIFORM = torch.ops.hemstitch.uniform.default


@dataclass(frozen=True, slots=True)
class _Origin:
    """A value as the result of elementwise `operations` on large tensors, the `sources`."""

    sources: frozenset[Node] = frozenset()
    operations: frozenset[Node] = frozenset()


def computed_again(joint: Graph, results: int) -> Iterator[Node]:
    """`results`: how many outputs of the joint graph are forward's; gradients follow."""
    [outputs] = joint.output_node().args
    assert isinstance(outputs, (tuple, list))
    forward = _forward_nodes(joint)
    kept = {value for value in outputs[:results] if isinstance(value, Node)}
    backward = [node for node in joint.nodes if node not in forward and node.op != "output"]
    used = {value for node in backward for value in node.all_input_nodes}
    origins: dict[Node, _Origin] = {}
    written: list[Node] = []
    read = set(used)  # by backward: itself, or as the origin of what is computed again
    for node in joint.nodes:
        if node not in forward or _bytes(node) is None:
            continue
        origin = origins[node] = _origin(node, origins)
        if node not in origin.operations or not _is_cheap(node, origin, kept):
            continue
        if _is_written(node, forward, kept):
            written.append(node)
            continue
        if node in used:
            read |= origin.sources
        yield node
    for node in written:
        if origins[node].sources <= read and not _is_written(node, {*joint.nodes}, set()):
            yield node


def _forward_nodes(joint: Graph) -> set[Node]:
    """All that needs no gradient of a result."""
    found: set[Node] = set()
    for node in joint.nodes:
        if node.op == "placeholder":
            is_given = not str(node.target).startswith("tangents")
        else:
            is_given = all(value in found for value in node.all_input_nodes)
        if is_given:
            found.add(node)
    return found


def _origin(node: Node, origins: dict[Node, _Origin]) -> _Origin:
    if node.target is UNIFORM:
        return _Origin()
    is_pointwise = _is_pointwise(node)
    if not is_pointwise and not _is_view(node):
        return _Origin(frozenset({node}))
    large = [origins[x] for x in node.all_input_nodes if x in origins and not _is_small(x, node)]
    sources = frozenset().union(*(origin.sources for origin in large))
    operations = frozenset({node} if is_pointwise else ())
    return _Origin(sources, operations.union(*(origin.operations for origin in large)))


def _is_cheap(node: Node, origin: _Origin, kept: set[Node]) -> bool:
    """It follows from one tensor in memory that is no larger."""
    if len(origin.sources) != 1 or len(origin.operations) > MOST_OPERATIONS:
        return False
    [source] = origin.sources
    source_bytes, node_bytes = _bytes(source), _bytes(node)
    assert source_bytes is not None and node_bytes is not None
    is_in_memory = source.op == "placeholder" or source in kept or _is_library(source)
    return is_in_memory and source_bytes <= node_bytes


def _is_written(node: Node, among: Container[Node], kept: Container[Node]) -> bool:
    """It is in memory in any case: a result, or one of these nodes is a library call that reads
    it."""
    if node in kept:
        return True
    return any(
        _is_library(user) or (_is_view(user) and _is_written(user, among, kept))
        for user in node.users
        if user in among
    )


def _is_library(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_library(node.all_input_nodes[0])
    return node.op == "call_function" and node.target not in RULES and node.target is not UNIFORM


def _is_pointwise(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target not in RULES:
        return False
    return torch.Tag.pointwise in node.target.tags or node.target is torch.ops.aten._to_copy.default


def _is_view(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _is_small(node: Node, than: Node) -> bool:
    mine, theirs = _bytes(node), _bytes(than)
    return mine is not None and theirs is not None and mine * SMALL <= theirs


def _bytes(node: Node) -> int | None:
    """Of a tensor whose sizes are known."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    size = value.numel() * value.element_size()
    return size if isinstance(size, int) else None
