"""Arguments that are one f64 number in a tensor, which PyTorch may also read as a number.

Where it cannot make a tensor of such a number again, it traces the program once more with the
number as a constant. Dynamo then erases what gives such an argument back and is read by nobody: a
write to it is lost. What no operation reads as a number is no reason to trace again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.symbolic_convert import TensorifyState
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_leaves


@contextmanager
def only_tensors(gm: GraphModule) -> Iterator[None]:
    """While PyTorch traces this graph of Dynamo's, numbers in arguments that it does not read are
    taken for constants already."""
    modules = [module for module in gm.modules() if isinstance(module, GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    numbers = {name for node in nodes if node.op == "placeholder" for name in _numbers(node)}
    read = {str(symbol) for node in nodes for symbol in _read(node)} if numbers else set()
    new = numbers - read - TensorifyState.force_specializations
    TensorifyState.force_specializations |= new
    try:
        yield
    finally:
        TensorifyState.force_specializations -= new


def _numbers(node: Node) -> Iterator[str]:
    """The symbol of the number that a tensor has, if there is one."""
    value = node.meta.get("example_value")
    memo = value.item_memo if isinstance(value, FakeTensor) else None
    if isinstance(memo, torch.SymFloat) and hasattr(memo.node._expr, "name"):
        yield memo.node._expr.name


def _read(node: Node) -> Iterator[Any]:
    for value in tree_leaves(node.meta.get("example_value")):
        if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield from free_symbols(value)
