"""Which results of a traced graph look into the same memory, as torch's views do: who writes to one
of them must see it in the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.fx
from torch._ops import OpOverload

from hemstitch.frontend.library import strides_of
from hemstitch.frontend.sizes import Sizes
from hemstitch.ir.dims import Dim


def shared_memory(results: Sequence[object], sizes: Sizes) -> dict[torch.fx.Node, torch.fx.Node]:
    """For each result that shares memory with another: the node that made the whole of it."""
    nodes = [each for each in results if isinstance(each, torch.fx.Node)]
    tensors = [node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    whole = {node: _whole(node) for node in tensors}
    count = Counter(whole.values())
    return {
        node: base
        for node, base in whole.items()
        if count[base] > 1 and base.op == "call_function" and _is_dense(base, sizes)
    }


def _whole(node: torch.fx.Node) -> torch.fx.Node:
    """Up the chain of views, as far as they keep the element type."""
    while isinstance(node.target, OpOverload) and node.target.is_view:
        (source, *_) = node.all_input_nodes
        if source.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = source
    return node


def _is_dense(node: torch.fx.Node, sizes: Sizes) -> bool:
    """Without gaps and repetitions: in memory as it is traced, whoever computes it."""
    traced = node.meta["val"]
    pairs = list(zip(sizes.dims(traced.shape), strides_of(traced, sizes)))
    left = [(size, step) for size, step in pairs if size != 1]
    extent: Dim = 1
    while left:
        found = next((pair for pair in left if pair[1] == extent), None)
        if found is None:
            return False
        left.remove(found)
        extent = extent * found[0]
    return True
