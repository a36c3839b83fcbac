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

from hemstitch.errors import OptionError

Function = Callable[..., Any]


def apply(traced: torch.fx.GraphModule, rewrites: Iterable[tuple[Function, Function]]) -> None:
    """Change `traced`, each rewrite wherever it matches."""
    for pattern, replacement in rewrites:
        found = replace_pattern_with_filters(traced, pattern, replacement)
        _complete(traced, found)
        for each in found:
            _check_type(each, replacement)
    traced.graph.eliminate_dead_code()


def _complete(traced: torch.fx.GraphModule, found: Sequence[ReplacedPatterns]) -> None:
    origin = {new: each.anchor for each in found for new in each.replacements}
    for node in traced.graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            anchor = origin.get(node)
            node.meta = dict(anchor.meta) if anchor is not None else {}
            node.meta.pop("tensor_meta", None)
            node.meta["val"] = _fake(node)


def _fake(node: torch.fx.Node) -> Any:
    arguments, keywords = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda source: source.meta["val"]
    )
    modes = [x.fake_mode for x in tree_leaves((arguments, keywords)) if hasattr(x, "fake_mode")]
    with modes[0] if modes else torch.no_grad():
        return node.target(*arguments, **keywords)  # type: ignore[operator]


def _check_type(found: ReplacedPatterns, replacement: Function) -> None:
    old = list(_types(found.anchor))
    new = list(_types(found.replacements[-1])) if found.replacements else old
    if old != new:
        raise OptionError(
            f"the replacement {_name(replacement)} gives {new} where its pattern gave {old}",
            hint="a rewrite keeps shapes and element types",
        )


def _types(node: torch.fx.Node) -> Iterator[tuple[tuple[object, ...], torch.dtype]]:
    for value in tree_leaves(node.meta.get("val")):
        if isinstance(value, Tensor):
            yield tuple(value.shape), value.dtype


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))
