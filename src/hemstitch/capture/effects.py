"""Which nodes of a traced graph do more than compute a value: the one place that says so."""

from __future__ import annotations

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from hemstitch.capture.collectives import is_collective

# Checks that PyTorch keeps in a graph by reading what they give.
ASSERTIONS = ("aten::_functional_assert_async", "aten::_functional_assert_scalar")
PURE_NAMESPACES = ("aten", "prims", "hemstitch")  # what runs twice there is the same twice


def runs_unread(node: Node) -> bool:
    """It writes, checks, prints or tells somebody: it runs even if nobody reads what it gives."""
    target = node.target
    is_assertion = isinstance(target, OpOverload) and target._schema.name in ASSERTIONS
    return is_assertion or node.is_impure(impure_random=False)


def has_effects(node: Node) -> bool:
    """It runs once for each time that the program calls it, in the program's order."""
    target = node.target
    if node.op != "call_function":
        return False
    if runs_unread(node) or isinstance(target, HigherOrderOperator) or is_collective(target):
        return True
    is_random = isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
    return is_random and not _is_attention_without_dropout(node)


def may_be_merged(node: Node) -> bool:
    """Two such calls of equal arguments are one. What a custom operation does besides its value,
    as to count its calls, PyTorch does not know."""
    if node.op != "call_function" or has_effects(node):
        return False
    target = node.target
    return not isinstance(target, OpOverload) or target.namespace in PURE_NAMESPACES


def drop_unread(graph: Graph) -> None:
    """Erases what nobody reads."""
    graph.eliminate_dead_code(runs_unread)


def _is_attention_without_dropout(node: Node) -> bool:
    """It draws nothing, though PyTorch says that it may."""
    target = node.target
    if not isinstance(target, OpOverload) or "_scaled_dot_product_" not in target._schema.name:
        return False
    passed = {
        argument.name: node.args[place] if place < len(node.args) else argument.default_value
        for place, argument in enumerate(target._schema.arguments)
    }
    return bool({**passed, **node.kwargs}.get("dropout_p") == 0.0)
