"""What it costs to compute an operation of the trace once more, in bytes moved."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from hemstitch.capture.traced_nodes import elements_of, name_of, tensors_of, value_of
from hemstitch.ir.ops import OPS

# What an operation on one element costs, beside bytes moved beyond the caches. A mask of dropout is
# better made again from its seed than written and read as a byte; nearer caches see it otherwise.
BYTES_PER_FLOP = 0.1
FLOPS = {
    **{op.value: row.flops for op, row in OPS.items()},
    **dict.fromkeys(("clone", "view", "reshape"), 0),
    **dict.fromkeys(("_to_copy", "mean", "amax", "amin"), 1),
    **dict.fromkeys(("silu", "silu_backward", "elu", "uniform"), 20),
    **dict.fromkeys(("gelu", "gelu_backward", "softplus", "mish"), 40),
}
OTHER_FLOPS = 2
# Times that of f32, with AVX2: exp 7, log and sin 5, tanh 11, erf 9, and half as many lanes.
FUNCTION_OF_DOUBLE, DOUBLE = 7, 2
FUNCTION_FLOPS = 8  # the least that a function takes


def effort_of(node: Node) -> float:
    source = node.all_input_nodes[0] if node.target is operator.getitem else node
    elements = max((elements_of(x) for x in (node, *tensors_of(source))), default=0)
    flops = FLOPS.get(name_of(source), OTHER_FLOPS)
    if any(value_of(x).dtype is torch.float64 for x in tensors_of(source)):
        flops *= FUNCTION_OF_DOUBLE if flops >= FUNCTION_FLOPS else DOUBLE
    return BYTES_PER_FLOP * flops * elements
