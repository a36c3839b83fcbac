"""The split of a joint graph into forward and backward: torch's min-cut, told what is computed
again rather than kept: random numbers, and what costs no more than reading it would.

Autograd's formulas detach what they use. Torch's min-cut takes a `detach` for something that has to
be kept, and with it the value, so it must not get to see one."""

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
    _bypass_detach(joint)
    again = list(computed_again(joint.graph, num_fwd_outputs))
    for node in [*joint.graph.find_nodes(op="call_function", target=UNIFORM), *again]:
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = 0
    forward, backward = min_cut_rematerialization_partition(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **keywords
    )
    return forward, backward


def _bypass_detach(joint: torch.fx.GraphModule) -> None:
    """Results keep theirs: of two that are one tensor, only one may have a gradient."""
    detach = torch.ops.aten.detach.default
    for node in joint.graph.find_nodes(op="call_function", target=detach):
        (source,) = node.args
        node.replace_all_uses_with(source, delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            joint.graph.erase_node(node)
