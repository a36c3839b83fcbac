"""Common-subexpression elimination of commutative operations: y + x becomes an existing x + y.

The builder interns nodes, so structurally equal nodes are one object already. (A library call
equals only itself.) Dead nodes are not part of a graph, which is what its roots reach. Only nodes
that differ in the order of their operands are left. Graph outputs are not merged: two outputs with
one value remain two tensors.
"""

from __future__ import annotations

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Node, Op
from hemstitch.rewrites.algebra import COMMUTATIVE
from hemstitch.rewrites.engine import Rule, rewrite, rule


def merge_common_operands(graph: Graph, builder: Builder) -> Graph:
    """`graph` with one node for each set of operands of a commutative operation."""
    return rewrite(graph, (operand_order_rule(),), builder)


def operand_order_rule() -> Rule:
    """The rule for one sweep: a node becomes the first one with the same set of operands."""
    first: dict[tuple[Op, frozenset[Node]], Node] = {}

    @rule(*COMMUTATIVE)
    def same_operands(builder: Builder, node: Node) -> Node | None:
        """y + x -> x + y    where x + y exists; and so for *, and, or, xor, ==, !="""
        return first.setdefault((node.op, frozenset(node.inputs)), node)

    return same_operands
