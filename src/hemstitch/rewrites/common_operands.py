"""Work that is written down twice is done once.

Nodes that nobody needs are gone already, since a graph is what its roots reach; equal nodes are
one object, since the builder interns them (a library call is equal only to itself). What is left
are nodes that differ but in the order of their operands. Outputs stay as they are: the caller
knows them by their places, and two with one value still are two tensors.
"""

from __future__ import annotations

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Node, Op
from hemstitch.rewrites.algebra import COMMUTATIVE
from hemstitch.rewrites.engine import Rule, rewrite, rule


def merge_common_operands(graph: Graph, builder: Builder) -> Graph:
    return rewrite(graph, (first_order(),), builder)


def first_order() -> Rule:
    """The rule for one sweep: it remembers which order of two operands came first."""
    first: dict[tuple[Op, frozenset[Node]], Node] = {}

    @rule(*COMMUTATIVE)
    def same_operands(builder: Builder, node: Node) -> Node | None:
        """y + x -> x + y    where there is x + y already; and so for *, and, or, xor, ==, !="""
        return first.setdefault((node.op, frozenset(node.inputs)), node)

    return same_operands
