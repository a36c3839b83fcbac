"""What a call in a traced graph gives, of the fake tensors that its arguments are there; and new
calls."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves


def value_of_call(node: torch.fx.Node, beside: object = None) -> Any:
    """`beside`: a fake tensor of the same graph, for calls that read none."""
    arguments, keywords = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda source: source.meta["val"]
    )
    with fake_mode((arguments, keywords, beside)):
        return node.target(*arguments, **keywords)  # type: ignore[operator]


def call_before(at: torch.fx.Node, target: Any, *arguments: Any, **keywords: Any) -> torch.fx.Node:
    """A new call before the node `at`, and from the same line of the program."""
    with at.graph.inserting_before(at):
        call = at.graph.call_function(target, arguments, keywords)
    call.meta = {key: at.meta[key] for key in ("stack_trace",) if key in at.meta}
    call.meta["val"] = value_of_call(call, at.meta.get("val"))
    return call


def fake_mode(values: object) -> AbstractContextManager[object]:
    """What makes operations on fake tensors give fake tensors."""
    modes = (value.fake_mode for value in tree_leaves(values) if isinstance(value, FakeTensor))
    return next(modes, None) or nullcontext()
