"""What is written to keeps its layout. AOTAutograd makes functions of writes, and some of these
give a contiguous result, so that what is computed from it is laid out otherwise than in eager. A
copy of that result to where the write goes keeps the layout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._prims_common import is_contiguous_or_false
from torch.fx import GraphModule, Node

from hemstitch.before_autograd.overlapping_writes import overlaps

CONTIGUOUS = frozenset(
    (
        *("scatter_", "scatter_add_", "scatter_reduce_", "masked_fill_", "masked_scatter_"),
        *("index_add_", "index_copy_", "index_reduce_", "tril_", "triu_", "renorm_"),
        *("cumsum_", "cumprod_", "addmm_", "addbmm_"),
    )
)


def keep_layouts(gm: GraphModule) -> None:
    """In Dynamo's graph, and in those of its checkpoints and branches."""
    for module in (x for x in gm.modules() if isinstance(x, GraphModule)):
        nodes = [*filter(_loses_layout, module.graph.nodes)]
        for node in nodes:
            with module.graph.inserting_before(node):
                new = module.graph.call_method(node.target[:-1], node.args, node.kwargs)
            new.meta = {**node.meta}
            node.target, node.args, node.kwargs = "copy_", (node.args[0], new), {}
        if nodes:
            module.recompile()


def _loses_layout(node: Node) -> bool:
    if node.op != "call_method" or node.target not in CONTIGUOUS:
        return False
    x = node.args[0].meta.get("example_value") if isinstance(node.args[0], Node) else None
    if not isinstance(x, Tensor) or x.layout is not torch.strided:
        return False
    return not is_contiguous_or_false(x) and not overlaps(x)
