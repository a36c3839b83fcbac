"""`x[mask] = value` of one value for all that the mask chooses, where the value has a gradient.

The gradient is a sum over what is chosen. PyTorch gathers that first, so that a size is read from
data and nothing is traced. As a choice between the two it is elementwise in both passes.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

WRITES = (operator.setitem, Tensor.index_put_, "index_put_")


def _written(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    rank = x.dim() - mask.dim()
    chosen = mask[(..., *(None,) * rank)]
    row = value.reshape(value.shape[max(0, value.dim() - rank) :])
    return x.copy_(torch.where(chosen, row, x))


def choose_by_masks(gm: GraphModule) -> None:
    """In Dynamo's graph, and in those of its checkpoints and branches."""
    for module in (x for x in gm.modules() if isinstance(x, GraphModule)):
        masks = {node: mask for node in module.graph.nodes if (mask := _mask(node)) is not None}
        for node, mask in masks.items():
            node.op, node.target = "call_function", _written
            node.args = (node.args[0], mask, node.args[2])
        if masks:
            module.recompile()


def _mask(node: Node) -> Node | None:
    """Where the node is such a write: the only index."""
    if node.target not in WRITES or len(node.args) != 3 or node.kwargs:
        return None
    x, index, value = node.args
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    if not (isinstance(x, Node) and isinstance(index, Node) and isinstance(value, Node)):
        return None
    old, mask, new = (node.meta.get("example_value") for node in (x, index, value))
    if not (isinstance(old, Tensor) and isinstance(mask, Tensor) and isinstance(new, Tensor)):
        return None
    is_same = mask.dtype is torch.bool and new.requires_grad and new.dtype is old.dtype
    before = new.shape[: max(0, new.dim() - old.dim() + mask.dim())]
    return index if is_same and all(size == 1 for size in before) else None
