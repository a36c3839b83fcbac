"""Where a traced op comes from: an fx node's notes to an `Origin`."""

from __future__ import annotations

import re
from typing import Any

import torch.fx

from hemstitch.errors import Location
from hemstitch.ir.graph import Origin

_FRAME = re.compile(
    r'File "(?P<file>[^"]*)", line (?P<line>\d+), in [^\n]*(?:\n\s*(?P<source>.*))?'
)
_MODULE_PREFIX = re.compile(r"^L?\[?['\"]?self['\"]?\]?\.?")


def origin_of(node: torch.fx.Node) -> Origin:
    name = str(node.meta.get("original_aten") or node.target)
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    module = _module(node.meta.get("nn_module_stack"))
    if not frames:
        return Origin(name, module=module)
    last = frames[-1]
    return Origin(name, last["file"], int(last["line"]), (last["source"] or "").strip(), module)


def begins(gm: torch.fx.GraphModule) -> Location | None:
    """The first line of the program that the graph has an operation of."""
    places = (origin_of(node).location for node in gm.graph.nodes if node.op == "call_function")
    return next((place for place in places if place is not None), None)


def _module(stack: Any) -> str:
    """The innermost module's path, "layers.3.mlp"."""
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return _MODULE_PREFIX.sub("", str(path))
