"""Work that is written down twice is done once.

Nodes that nobody needs are gone already, since a graph is what its roots reach; equal nodes are
one object, since the builder interns them (a library call is equal only to itself). What is left
are nodes that differ but in the order of their operands. Outputs stay as they are: the caller
knows them by their places, and two with one value still are two tensors.
"""

from __future__ import annotations

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Node, Op, toposort
from hemstitch.passes.algebra import COMMUTATIVE
from hemstitch.passes.engine import Rule, rewrite, rule


def cleanup(graph: Graph, builder: Builder) -> Graph:
    return rewrite(graph, (in_order(graph),), builder)


def in_order(graph: Graph) -> Rule:
    """The rule that makes `y + x` the node `x + y`, going by which of the two comes first."""
    place = {node: index for index, node in enumerate(toposort(graph.roots))}

    @rule(*COMMUTATIVE)
    def operands_in_order(builder: Builder, node: Node) -> Node | None:
        """y + x -> x + y    and so for *, and, or, xor, ==, !=; constants stay last"""
        x, y = node.inputs
        if Op.CONSTANT in (x.op, y.op):
            return None
        later = place.setdefault(x, len(place)) > place.setdefault(y, len(place))
        return builder.make(node.op, y, x) if later else None

    return operands_in_order
