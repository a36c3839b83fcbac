"""A user's own rewrites of the traced graph: pairs of plain functions of ATen operations, a pattern
and what replaces it (EVT 2024, section 4.1). In training they see forward and backward at once,
before the graph is split.

The matching is torch's (`torch.fx.subgraph_rewriter`). What it leaves out is done here: new nodes
get their fake values, and a replacement of another shape or type is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.fx.subgraph_rewriter import ReplacedPatterns, replace_pattern_with_filters
from torch.utils._pytree import tree_leaves

from hemstitch.capture.effects import drop_unread
from hemstitch.capture.fake_calls import fake_mode, value_of_call
from hemstitch.capture.traced_nodes import formulas
from hemstitch.errors import OptionError

Function = Callable[..., Any]


def apply_user_rewrites(
    traced: torch.fx.GraphModule, rewrites: Iterable[tuple[Function, Function]]
) -> None:
    """Change `traced`, each rewrite wherever it matches."""
    for pattern, replacement in rewrites:
        matches = replace_pattern_with_filters(traced, pattern, replacement)
        for match in matches:
            _check_types(match, replacement)
        _complete(traced, matches)
    drop_unread(traced.graph)


def _check_types(match: ReplacedPatterns, replacement: Function) -> None:
    """Raises OptionError for a replacement of another shape or type. The `nodes_map` of a match
    leads from the pattern's nodes to those that it matched."""
    pattern = match.anchor.graph
    arguments = [match.nodes_map[node].meta["val"] for node in pattern.find_nodes(op="placeholder")]
    (result,) = pattern.output_node().args
    assert isinstance(result, torch.fx.Node)
    old = list(_types(match.nodes_map[result].meta["val"]))
    with fake_mode(arguments):
        new = list(_types(replacement(*arguments)))
    if old != new:
        raise OptionError(
            f"the replacement {_name(replacement)} gives {new} where its pattern gave {old}",
            hint="a rewrite keeps shapes and element types",
        )


def _types(value: object) -> Iterator[tuple[tuple[object, ...], torch.dtype]]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield formulas(leaf.shape), leaf.dtype


def _complete(traced: torch.fx.GraphModule, matches: Sequence[ReplacedPatterns]) -> None:
    """New nodes get what the trace would have given them, and the place of what they replace."""
    places = {new: [*match.nodes_map.values()] for match in matches for new in match.replacements}
    for node in traced.graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            traces = [
                old.meta["stack_trace"] for old in places.get(node, ()) if "stack_trace" in old.meta
            ]
            node.meta = {"stack_trace": traces[-1]} if traces else {}
            node.meta["val"] = value_of_call(node)


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))
