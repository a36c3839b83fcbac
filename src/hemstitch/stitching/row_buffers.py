"""Which values of a row are kept in a row buffer for its later loops, and which are made again.

Keeping costs a store and a load a vector; making again costs the arithmetic and loads below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS
from hemstitch.stitching.group import INLINE, Group

KEEP_COST = 6  # vector instructions: a store, a load, and address arithmetic of both


def kept_values(
    group: Group, loops: Sequence[set[Node]], candidates: Mapping[Node, int]
) -> list[Node]:
    """Members to keep. `loops[k]`: what loop k of the row evaluates, in order of execution;
    `candidates[node]`: the first loop that evaluates it for a whole row."""
    kept: dict[Node, None] = {}
    direct = {reader: _direct(reader) for reader in set().union(*loops)}
    cost: dict[Node, int] = {}
    for node in group.members:
        if not any(node in loop for loop in loops):
            continue
        own = KEEP_COST if node.op is Op.DOT else OPS[node.op].flops  # a product is added up once
        cost[node] = own + sum(_cost(x, cost) for x in set(node.inputs))
        first = candidates.get(node)
        if first is None or cost[node] < KEEP_COST:
            continue
        if any(
            node in loop and _is_frontier(node, loop, loops[first], direct)
            for loop in loops[first + 1 :]
        ):
            kept[node] = None
            cost[node] = 1
    return list(kept)


def _cost(node: Node, cost: dict[Node, int]) -> int:
    """Of members and views it is in `cost`, once asked for: a view may have many readers."""
    if node not in cost and OPS[node.op].op_class.value == "view":
        cost[node] = sum(_cost(x, cost) for x in node.inputs)
    return cost.get(node, OPS[node.op].flops if node.op in INLINE else 1)


def _is_frontier(
    node: Node, later: set[Node], first: set[Node], direct: Mapping[Node, set[Node]]
) -> bool:
    """Something in the later loop reads `node` that the first loop did not make."""
    readers = [x for x in later if node in direct[x]]
    return not readers or any(reader not in first for reader in readers)


def _direct(reader: Node) -> set[Node]:
    """The operands of `reader`, looking through views."""
    found: set[Node] = set()
    work = list(reader.inputs)
    while work:
        node = work.pop()
        if node in found:
            continue
        found.add(node)
        if OPS[node.op].op_class.value == "view":
            work.extend(node.inputs)
    return found
