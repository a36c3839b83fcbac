"""Attention has as many values as keys, but its trace does not say so: the lengths of two caches
that grow are two symbols. Here they become one, by a guard that holds wherever the program does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.fx import GraphModule, Node
from torch.nn.functional import scaled_dot_product_attention

from hemstitch.capture.traced_nodes import are_hinted, hints_of

LENGTH = -2  # the axis of keys, and of values


def as_many_values_as_keys(program: GraphModule) -> None:
    """Of a graph as Dynamo makes it, with those within it, before anything else traces it."""
    for part in program.modules():
        if isinstance(part, GraphModule):
            for key, value in _pairs(part):
                _unify(key.shape[LENGTH], value.shape[LENGTH])


def _pairs(program: GraphModule) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    calls = program.graph.find_nodes(op="call_function", target=scaled_dot_product_attention)
    for call in calls:
        named = {**dict(zip(("query", "key", "value"), call.args)), **call.kwargs}
        key, value = (_traced(named, name) for name in ("key", "value"))
        if key is not None and value is not None:
            yield key, value


def _traced(named: Mapping[str, object], name: str) -> torch.Tensor | None:
    node = named.get(name)
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) and value.dim() > 1 else None


def _unify(keys: int | torch.SymInt, values: int | torch.SymInt) -> None:
    """Where the program is wrong, it is PyTorch that says so."""
    sizes = keys, values
    is_symbolic = any(isinstance(size, torch.SymInt) for size in sizes)
    if is_symbolic and are_hinted(sizes) and len(set(hints_of(sizes))) == 1:
        torch._check(keys == values)  # type: ignore[no-untyped-call]
