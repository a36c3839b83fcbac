"""Products of matrices that are added up become one product, of what lies side by side.

The gradient of weights that a recurrent model uses in each of its steps is such a sum: so many thin
products, each as large as the weights, that are written and read again to be added. One product
adds up in registers. In which order a product adds is the library's secret anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hemstitch.exactness import ROUNDING
from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Matmul, StructuredCall
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Graph, Node, Op, operation_of, toposort, users
from hemstitch.ir.types import TensorType
from hemstitch.rewrites.engine import Rule, rewrite, rule

LAUNCH = 10_000  # elements that move while a kernel is launched: 2 us at 20 GB/s
TRANSPOSED = (1, 0)


def merge_matmuls(graph: Graph, builder: Builder) -> Graph:
    return rewrite(graph, (gathered_products(graph),), builder)


@dataclass(frozen=True, slots=True)
class _Stack:
    """A concatenation of matrices [steps, columns] along axis 0, or of such with an axis of size 1
    more, along that; where either way the columns stay the last axis."""

    parts: tuple[Node, ...]
    axis: int
    rank: int

    def like(self, builder: Builder, parts: Sequence[Node]) -> Node:
        """The same of other matrices."""
        shapes = [list(part.shape) for part in parts]
        if self.rank == 3:
            for shape in shapes:
                shape.insert(self.axis, 1)
        return builder.concat([builder.reshape(p, s) for p, s in zip(parts, shapes)], self.axis)


def gathered_products(graph: Graph) -> Rule:
    """The rule for one graph: where nobody else reads the products, and their sums."""
    nodes = toposort(graph.roots)
    readers, roots = users(nodes), set(graph.roots)
    single = {node for node, found in readers.items() if len(found) == 1} - roots
    inner = {n for n in single if n.op is Op.ADD and readers[n][0].op is Op.ADD}
    stacks = {frozenset(s.parts): s for s in map(_stack_of, nodes) if s is not None}

    @rule(Op.ADD, exactness=ROUNDING)
    def sum_of_products(builder: Builder, node: Node) -> Node | None:
        """a @ b + c @ d -> concat(a, c) @ concat(b, d)    where that moves less"""
        if node in inner or node.type.rank != 2 or not node.type.dtype.is_float:
            return None
        products, rest = list[Node](), list[Node]()
        work = list(node.inputs[::-1])
        while work:
            term = work.pop()
            if term in inner:
                work.extend(term.inputs[::-1])
            else:
                (products if term in single and _is_product(term, single) else rest).append(term)
        total = _gathered(builder, products, stacks) if len(products) > 1 else None
        if total is None:
            return None
        for term in rest:
            total = builder.make(Op.ADD, total, term)
        return total

    return sum_of_products


def _is_product(term: Node, single: set[Node]) -> bool:
    """Of two matrices of known sizes by the library."""
    if operation_of(term) != Matmul() or term.type.rank != 2 or term.inputs[0] not in single:
        return False
    return all(isinstance(size, int) for factor in term.inputs[0].inputs for size in factor.shape)


def _stack_of(node: Node) -> _Stack | None:
    axis, rank = node.attr, node.type.rank
    if node.op is not Op.CONCAT or not isinstance(axis, int) or axis >= rank - 1:
        return None
    if rank == 2:
        return _Stack(node.inputs, axis, rank)
    parts = [part.inputs[0] for part in node.inputs if part.op is Op.RESHAPE]
    wanted = [(*part.shape[:axis], *part.shape[axis + 1 :]) for part in node.inputs]
    is_stack = rank == 3 and [part.shape for part in parts] == wanted
    return _Stack(tuple(parts), axis, rank) if is_stack else None


def _gathered(
    builder: Builder, products: Sequence[Node], stacks: Mapping[frozenset[Node], _Stack]
) -> Node | None:
    """`left` and `right` of each product as [steps, its rows] and [steps, its columns]."""
    factors = [product.inputs[0].inputs for product in products]
    lefts = [_transposed(builder, left) for left, _ in factors]
    rights = [right for _, right in factors]
    if len(set(lefts)) < len(lefts) or len(set(rights)) < len(rights):
        return None
    found = [stacks.get(frozenset(parts)) for parts in (lefts, rights)]
    (rows, columns), steps = products[0].shape, sum(known(left.shape[0]) for left in lefts)
    copied = sum(2 * steps * known(n) for n, k in zip((rows, columns), found) if k is None)
    if copied > len(products) * (2 * known(rows) * known(columns) + LAUNCH):
        return None
    model = found[0] or found[1] or _Stack(tuple(lefts), 0, 2)
    side = rights if model is found[1] else lefts
    pairs = dict(zip(side, zip(lefts, rights)))
    sides = [model.like(builder, parts) for parts in zip(*(pairs[p] for p in model.parts))]
    left, right = (builder.reshape(s, (steps, s.shape[-1])) for s in sides)
    return _product(builder, products[0], builder.permute(left, TRANSPOSED), right)


def _product(builder: Builder, like: Node, left: Node, right: Node) -> Node:
    """As the library multiplies, of a left factor whose columns lie side by side."""
    rows, columns = like.shape
    type_ = TensorType((rows, columns), like.type.dtype)
    call = StructuredCall(Matmul(), ((1, rows), (columns, 1)), ((type_, (columns, 1)),))
    (result,) = builder.call(call, (left, right))
    assert result is not None
    return result


def _transposed(builder: Builder, x: Node) -> Node:
    is_transposed = x.op is Op.PERMUTE and x.attr == TRANSPOSED
    return x.inputs[0] if is_transposed else builder.permute(x, TRANSPOSED)
