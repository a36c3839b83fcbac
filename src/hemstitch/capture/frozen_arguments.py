"""Which arguments of a traced graph are frozen weights, where the user says that weights are."""

from __future__ import annotations

import torch
from torch._guards import TracingContext

from hemstitch.capture.effects import has_effects


def frozen_arguments(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Positions of parameters and buffers, but of those that the graph writes to; none for a graph
    that Dynamo has not traced, since only Dynamo knows which these are."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    written = {
        source for node in gm.graph.nodes if has_effects(node) for source in node.all_input_nodes
    }
    frozen = (k for k in context.fw_metadata.static_input_indices if places[k] not in written)
    return frozenset(frozen)
