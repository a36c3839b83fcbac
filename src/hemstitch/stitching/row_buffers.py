"""Which values of a row are retained in a row buffer for its later loops, and which are recomputed.

Retaining costs a store and a load per vector; recomputation costs the arithmetic and loads below
the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS
from hemstitch.stitching.group import INLINE, Group

# In the units of `OpRow.flops`, of no machine: a store, a load, and their address arithmetic.
RETAIN_COST = 6


def retained_values(
    group: Group, loops: Sequence[set[Node]], candidates: Mapping[Node, int]
) -> list[Node]:
    """The members to retain. `loops[k]`: the nodes that loop k of the row evaluates, in order of
    execution. `candidates[node]`: the first loop that evaluates it for a whole row."""
    retained: dict[Node, None] = {}
    operands_of = {reader: _operands_through_views(reader) for reader in set().union(*loops)}
    cost: dict[Node, int] = {}
    for node in group.members:
        if not any(node in loop for loop in loops):
            continue
        own = RETAIN_COST if node.op is Op.DOT else OPS[node.op].flops  # a matmul is computed once
        cost[node] = own + sum(_cost(x, cost) for x in set(node.inputs))
        first = candidates.get(node)
        if first is None or cost[node] < RETAIN_COST:
            continue
        if any(
            node in loop and _is_frontier(node, loop, loops[first], operands_of)
            for loop in loops[first + 1 :]
        ):
            retained[node] = None
            cost[node] = 1
    return list(retained)


def _cost(node: Node, cost: dict[Node, int]) -> int:
    """The cost to recompute `node`. `cost` has those of members, and of views once they are
    needed."""
    if node not in cost and OPS[node.op].op_class.value == "view":
        cost[node] = sum(_cost(x, cost) for x in node.inputs)
    return cost.get(node, OPS[node.op].flops if node.op in INLINE else 1)


def _is_frontier(
    node: Node, later_loop: set[Node], first_loop: set[Node], operands_of: Mapping[Node, set[Node]]
) -> bool:
    """Whether a node of the later loop reads `node`, but is not evaluated in the first loop."""
    readers = [x for x in later_loop if node in operands_of[x]]
    return not readers or any(reader not in first_loop for reader in readers)


def _operands_through_views(reader: Node) -> set[Node]:
    """The operands of `reader`, looking through views."""
    operands: set[Node] = set()
    work = list(reader.inputs)
    while work:
        node = work.pop()
        if node in operands:
            continue
        operands.add(node)
        if OPS[node.op].op_class.value == "view":
            work.extend(node.inputs)
    return operands
