"""Sums of matmuls become one matmul of concatenated operands: a @ b + c @ d = [a c] @ [b; d].

The weight gradient of a recurrent model is a sum of one thin matmul per step. Each of them would
write and read a matrix as large as the weights. One matmul with a longer K dimension accumulates in
registers instead. The order of additions inside a library matmul is unspecified anyway.
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
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.rewrites.engine import Rule, rewrite, rule

TRANSPOSED = (1, 0)


def merge_matmuls(graph: Graph, builder: Builder) -> Graph:
    """`graph` with sums of matmuls merged, where that moves less memory."""
    return rewrite(graph, (added_matmuls_rule(graph),), builder)


@dataclass(frozen=True, slots=True)
class _Stack:
    """A concatenation along `axis` of matrices [steps, columns] (`rank` 2), or of such matrices
    with an extra axis of size 1 at `axis` (`rank` 3). Columns are the last axis."""

    parts: tuple[Node, ...]
    axis: int
    rank: int

    def like(self, builder: Builder, parts: Sequence[Node]) -> Node:
        """The same concatenation of other matrices."""
        shapes = [list(part.shape) for part in parts]
        if self.rank == 3:
            for shape in shapes:
                shape.insert(self.axis, 1)
        return builder.concat([builder.reshape(p, s) for p, s in zip(parts, shapes)], self.axis)


def added_matmuls_rule(graph: Graph) -> Rule:
    """The rule for `graph`: it merges matmuls and sums that have a single reader."""
    nodes = toposort(graph.roots)
    readers, roots = users(nodes), set(graph.roots)
    single = {node for node, uses in readers.items() if len(uses) == 1} - roots
    inner_sums = {n for n in single if n.op is Op.ADD and readers[n][0].op is Op.ADD}
    stacks = {frozenset(s.parts): s for s in map(_stack_of, nodes) if s is not None}

    @rule(Op.ADD, exactness=ROUNDING)
    def merge_added_matmuls(builder: Builder, node: Node) -> Node | None:
        """a @ b + c @ d -> concat(a, c) @ concat(b, d)    where that moves less"""
        if node in inner_sums or node.type.rank != 2 or not node.type.dtype.is_float:
            return None
        matmuls, rest = list[Node](), list[Node]()
        work = list(node.inputs[::-1])
        while work:
            term = work.pop()
            if term in inner_sums:
                work.extend(term.inputs[::-1])
            else:
                (matmuls if term in single and _is_matmul(term, single) else rest).append(term)
        total = _merged(builder, matmuls, stacks) if len(matmuls) > 1 else None
        if total is None:
            return None
        for term in rest:
            total = builder.make(Op.ADD, total, term)
        return total

    return merge_added_matmuls


def _is_matmul(term: Node, single: set[Node]) -> bool:
    """Whether `term` is a library matmul of two matrices of known sizes, with a single reader."""
    if operation_of(term) != Matmul() or term.type.rank != 2 or term.inputs[0] not in single:
        return False
    operands = term.inputs[0].inputs
    return all(isinstance(size, int) for operand in operands for size in operand.shape)


def _stack_of(node: Node) -> _Stack | None:
    axis, rank = node.attr, node.type.rank
    if node.op is not Op.CONCAT or not isinstance(axis, int) or axis >= rank - 1:
        return None
    if rank == 2:
        return _Stack(node.inputs, axis, rank)
    parts = [part.inputs[0] for part in node.inputs if part.op is Op.RESHAPE]
    shapes = [(*part.shape[:axis], *part.shape[axis + 1 :]) for part in node.inputs]
    is_stack = rank == 3 and [part.shape for part in parts] == shapes
    return _Stack(tuple(parts), axis, rank) if is_stack else None


def _merged(
    builder: Builder, matmuls: Sequence[Node], stacks: Mapping[frozenset[Node], _Stack]
) -> Node | None:
    """One matmul for the sum of `matmuls`; None where the copies cost more than the sum. Left
    operands are transposed to [steps, rows], right operands are [steps, columns]."""
    operands = [matmul.inputs[0].inputs for matmul in matmuls]
    lefts = [_transposed(builder, left) for left, _ in operands]
    rights = [right for _, right in operands]
    if len(set(lefts)) < len(lefts) or len(set(rights)) < len(rights):
        return None
    existing = [stacks.get(frozenset(parts)) for parts in (lefts, rights)]
    (rows, columns), steps = matmuls[0].shape, sum(known(left.shape[0]) for left in lefts)
    copied = sum(2 * steps * known(n) for n, k in zip((rows, columns), existing) if k is None)
    if copied > len(matmuls) * (2 * known(rows) * known(columns) + CPU.launch_elements):
        return None
    model = existing[0] or existing[1] or _Stack(tuple(lefts), 0, 2)
    side = rights if model is existing[1] else lefts
    pairs = dict(zip(side, zip(lefts, rights)))
    sides = [model.like(builder, parts) for parts in zip(*(pairs[p] for p in model.parts))]
    left, right = (builder.reshape(s, (steps, s.shape[-1])) for s in sides)
    return _matmul_like(builder, matmuls[0], builder.permute(left, TRANSPOSED), right)


def _matmul_like(builder: Builder, like: Node, left: Node, right: Node) -> Node:
    """The library's matmul of a column-major `left` and `right`, with the type of `like`."""
    rows, columns = like.shape
    type_ = TensorType((rows, columns), like.type.dtype)
    call = StructuredCall(Matmul(), ((1, rows), (columns, 1)), ((type_, (columns, 1)),))
    (result,) = builder.call(call, (left, right))
    assert result is not None
    return result


def _transposed(builder: Builder, x: Node) -> Node:
    is_transposed = x.op is Op.PERMUTE and x.attr == TRANSPOSED
    return x.inputs[0] if is_transposed else builder.permute(x, TRANSPOSED)
