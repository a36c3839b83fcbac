"""The split of a joint graph into forward and backward: torch's min-cut, told what is computed
again rather than kept: random numbers, and what costs no more than reading it would."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from functorch.compile import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.frontend.recompute import UNIFORM, computed_again


def partition(
    joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **keywords: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """(forward, backward); what backward needs of forward is returned by the one, given to the
    other."""
    again = list(computed_again(joint.graph, num_fwd_outputs))
    for node in [*joint.graph.find_nodes(op="call_function", target=UNIFORM), *again]:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = 0
    forward, backward = min_cut_rematerialization_partition(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **keywords
    )
    return forward, backward
