"""What a call in a traced graph gives, of the fake tensors that its arguments are there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves


def value_of_call(node: torch.fx.Node) -> Any:
    arguments, keywords = torch.fx.node.map_arg(
        (node.args, node.kwargs), lambda source: source.meta["val"]
    )
    with fake_mode((arguments, keywords)):
        return node.target(*arguments, **keywords)  # type: ignore[operator]


def fake_mode(values: object) -> AbstractContextManager[object]:
    """What makes operations on fake tensors give fake tensors."""
    modes = (each.fake_mode for each in tree_leaves(values) if isinstance(each, FakeTensor))
    return next(modes, None) or nullcontext()
