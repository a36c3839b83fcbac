"""Calls that check or tell something, without the tokens that AOTAutograd orders them by: what has
effects stays in the program's order anyway, and a call through a token takes as long as a hundred
of its kind."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.effects import with_effects
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

prims = torch.ops.prims
TOKENS = (prims._sink_tokens.default, prims._make_token.default)


def without_tokens(gm: GraphModule) -> None:
    """Of operations. What has no schema keeps its token."""
    graph = gm.graph
    calls = [*graph.find_nodes(op="call_function", target=with_effects)]
    for node in calls:
        if isinstance(node.args[1], OpOverload):
            _call(node, node.args[1])
    tokens = [x for token in TOKENS for x in graph.find_nodes(op="call_function", target=token)]
    for node in tokens:
        if not node.users and all(token.target in TOKENS for token in node.all_input_nodes):
            graph.erase_node(node)
    if calls or tokens:
        gm.recompile()


def _call(node: Node, operation: OpOverload) -> None:
    graph, (token, _, *arguments) = node.graph, node.args
    values: Any = node.meta["val"][1:]
    is_one = len(operation._schema.returns) < 2
    with graph.inserting_before(node):
        call = graph.call_function(operation, tuple(arguments), node.kwargs)
    call.meta = {**node.meta, "val": values[0] if is_one else values}
    for part in [*node.users]:
        assert part.target is operator.getitem and isinstance(part.args[1], int)
        if part.args[1] > 0 and not is_one:
            part.args = (call, part.args[1] - 1)
            continue
        part.replace_all_uses_with(call if part.args[1] else token)  # type: ignore[arg-type]
        graph.erase_node(part)
    graph.erase_node(node)
