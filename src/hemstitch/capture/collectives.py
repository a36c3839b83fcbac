"""Collectives: calls that the ranks of a job make together. Each runs once, in the program's order.

Most return at once, with a tensor that is filled meanwhile, and `wait_tensor` returns when it is
full. Until then the work looks into operand and result: nobody else may write to the one, or read
the other.
"""

from __future__ import annotations

import operator

import torch.fx
from torch._ops import OpOverload

from hemstitch.capture.traced_nodes import is_view

FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd")
NAMESPACES = (*FUNCTIONAL, "c10d", "fsdp", "symm_mem", "_dtensor")
WAIT = "_c10d_functional::wait_tensor"  # by name, since there are builds without torch.distributed


def is_collective(target: object) -> bool:
    return isinstance(target, OpOverload) and target.namespace in NAMESPACES


def is_wait(target: object) -> bool:
    return isinstance(target, OpOverload) and target._schema.name == WAIT


def begins(target: object) -> bool:
    """Whether its results are full only after a wait."""
    is_functional = isinstance(target, OpOverload) and target.namespace in FUNCTIONAL
    return is_functional and not is_wait(target)


def is_under_way(node: torch.fx.Node) -> bool:
    """Whether what it gives is a collective's result, or looks into one, without a wait between."""
    while is_view(node) or node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return begins(node.target)
