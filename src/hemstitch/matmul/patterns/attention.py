"""Attention by the library, written as its two products with a softmax between them. Takes a
library call with its operands, gives what each of its results is.

    scores = q k^T * scale + mask        weights = exp(scores - max)
    output = weights v / sum             logsumexp = max + log(sum)

The division comes after the product, whose columns are fewer than a row's weights (Dao et al. 2022,
FlashAttention, section 3.1). A row that is masked as a whole gives zeros, as the library's does.
Of bf16 the weights are rounded before they are multiplied, all else is f32, as in the library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, sqrt

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Attention, Call, MatmulAxis, StructuredCall, Within
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.ir.types import DType
from hemstitch.matmul.patterns.gemv import VectorProduct, apart
from hemstitch.matmul.patterns.inlined import Inlined, MatmulSum
from hemstitch.stitching.group import MOST_CONCAT_PARTS

TRANSPOSED = (0, 1, 3, 2)
HEADS_LATER = (0, 2, 1, 3)  # [batch, heads, rows, features] as a model has it in memory, or back
F32 = DType.F32
ALL = Range(0)
# Causal rows go by in so many parts, each with the keys up to its last row: little more than half
# of the products of all. A concatenation of fewer would be read in parts, not from memory.
MOST_PARTS, LEAST_PARTS, LEAST_ROWS = 12, MOST_CONCAT_PARTS + 1, 32


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Some rows' results. `products`: both, each with what is made of it alone; none of a single
    row, which multiplies vectors. `stored`: what all keys read, and so is to be in memory."""

    output: Node
    logsumexp: Node
    products: tuple[tuple[Node, Node], ...]
    stored: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionAsMatmuls:
    """`q` [batch, heads, rows, features], `k` and `v` [batch, heads, keys, features]. `within`:
    what the mask lets through of the scores."""

    builder: Builder
    q: Node
    k: Node
    v: Node
    mask: Node | None
    is_causal: bool
    scale: float
    within: Within | None = None

    def constant_operand(self) -> None:
        """It has no weights."""

    def result(self, number: int) -> Inlined:
        """The call's result with this number."""
        parts = [*self._parts()]
        return Inlined(
            self._value(parts, number),
            [MatmulSum((product,), total) for part in parts for product, total in part.products],
            stored=[node for part in parts for node in part.stored],
            together=[[product for product, _ in part.products] for part in parts],
            is_one_matmul=False,
        )

    def _value(self, parts: Sequence[AttentionPart], number: int) -> Node:
        b = self.builder
        if number == 1:
            return b.concat([part.logsumexp for part in parts], 2)
        outputs = [b.permute(part.output, HEADS_LATER) for part in parts]
        return b.permute(b.concat(outputs, 1), HEADS_LATER)

    def _parts(self) -> Iterator[AttentionPart]:
        rows, keys = self.q.shape[2], self.k.shape[2]
        count = 1
        if self.is_causal and isinstance(rows, int) and isinstance(keys, int):
            count = min(MOST_PARTS, rows // LEAST_ROWS)
        if count < LEAST_PARTS:
            yield self._part(self.q, self.k, self.v, 0)
            return
        ends = [known(rows) * number // count for number in range(count + 1)]
        for first, last in pairwise(ends):
            most = min(last, known(keys))
            k, v = self._slice(self.k, 0, most), self._slice(self.v, 0, most)
            yield self._part(self._slice(self.q, first, last), k, v, first)

    def _slice(self, x: Node, first: int, last: int) -> Node:
        shape = (*x.shape[:2], last - first, x.shape[3])
        return self.builder.slice(x, (ALL, ALL, Range(first), ALL), shape)

    def _part(self, q: Node, k: Node, v: Node, first: int) -> AttentionPart:
        """`first`: the row where `q` begins."""
        b, new = self.builder, list[Node]()
        if q.shape[2] == 1:
            k, v = (self._with_new_apart(x, new) for x in (k, v))
            k, v = (self._for_each_head(x) for x in (k, v))
        keys = b.permute(k, TRANSPOSED)
        inner = VectorProduct.of(b, q, keys) if q.shape[2] == 1 else None
        product = b.dot(q, keys, self.within) if inner is None else inner.sums
        scores = self._masked(product, first)
        top = b.reduce(Op.MAX, scores, (3,), keep=True)
        lowest = b.constant(-inf, F32, top.shape)
        nothing = b.constant(0.0, F32, top.shape)
        top = b.make(Op.WHERE, b.make(Op.EQ, top, lowest), nothing, top)
        below = b.make(Op.SUB, scores, b.broadcast(top, scores.shape))
        weights = b.make(Op.EXP, below)
        total = b.reduce(Op.SUM, weights, (3,), keep=True)
        one = b.constant(1.0, F32, total.shape)
        total = b.make(Op.WHERE, b.make(Op.EQ, total, nothing), one, total)
        logsumexp = b.make(Op.ADD, top, b.make(Op.LOG, total))
        weights = b.cast(weights, v.type.dtype)
        outer = VectorProduct.of(b, weights, v) if inner is not None else None
        mixed = b.dot(weights, v, self._of_weights()) if outer is None else outer.sums
        share = b.broadcast(b.make(Op.RECIPROCAL, total), mixed.shape)
        output = b.cast(b.make(Op.MUL, mixed, share), v.type.dtype)
        logsumexp = b.reshape(logsumexp, total.shape[:3])
        if inner is not None and outer is not None:
            return AttentionPart(output, logsumexp, (), (inner.vector, *new))
        return AttentionPart(output, logsumexp, ((product, product), (mixed, output)))

    def _of_weights(self) -> Within | None:
        """What of the second product is wanted, whose steps are the columns of the first."""
        if self.within is None:
            return None
        places = {MatmulAxis.ROW: MatmulAxis.ROW, MatmulAxis.COLUMN: MatmulAxis.STEP}
        low, high = (places[place] for place in (self.within.low, self.within.high))
        return Within(low, high, self.within.distance)

    def _for_each_head(self, x: Node) -> Node:
        if x.shape[1] == self.q.shape[1]:
            return x
        heads, (batch, groups, *rest) = known(self.q.shape[1]), x.shape
        one = self.builder.reshape(x, (batch, groups, 1, *rest))
        repeated = self.builder.broadcast(one, (batch, groups, heads // known(groups), *rest))
        return self.builder.reshape(repeated, (batch, heads, *rest))

    def _with_new_apart(self, x: Node, new: list[Node]) -> Node:
        """Keys or values, of which those of the last token are computed."""
        if x.op is not Op.CONCAT:
            return x
        b, parts = self.builder, list[Node]()
        for part in x.inputs:
            parts.append(b.reshape(apart(b, part), part.shape))
        new += parts
        assert isinstance(x.attr, int)
        return b.concat(parts, x.attr)

    def _masked(self, product: Node, first: int) -> Node:
        b, shape = self.builder, product.shape
        scores = b.make(Op.MUL, product, b.constant(self.scale, F32, shape))
        if self.mask is not None:
            scores = b.make(Op.ADD, scores, b.broadcast(b.cast(self.mask, F32), shape))
        if not self.is_causal:
            return scores
        row = b.make(Op.ADD, b.iota(shape, 2), b.constant(first, DType.I64, shape))
        is_later = b.make(Op.GT, b.iota(shape, 3), row)
        return b.make(Op.WHERE, is_later, b.constant(-inf, F32, shape), scores)


def attention_of(builder: Builder, call: Call, inputs: Sequence[Node]) -> AttentionAsMatmuls | None:
    """What the call attends to; None if it is none that is written out here."""
    match call:
        case StructuredCall(operation=Attention() as attention):
            (q, k, v), mask = inputs[:3], inputs[3] if attention.has_mask else None
        case _:
            return None
    features, scale = q.shape[3], attention.scale
    if not (all(map(_is_plain, inputs)) and _fit(q, k, v) and isinstance(features, int)):
        return None
    return AttentionAsMatmuls(
        *(builder, q, k, v, mask, attention.is_causal),
        1 / sqrt(features) if scale is None else scale,
        attention.within,
    )


def _fit(q: Node, k: Node, v: Node) -> bool:
    """Where some heads have keys and values together, products of several rows would need these in
    memory for each head, and the library does not."""
    if k.shape[:3] != v.shape[:3] or 1 in (q.shape[3], *k.shape[2:]):
        return False
    heads, groups = q.shape[1], k.shape[1]
    is_shared = isinstance(heads, int) and isinstance(groups, int) and heads % groups == 0
    are_own = heads == groups or (is_shared and q.shape[2] == 1)
    return are_own and q.shape[0] == k.shape[0]


def _is_plain(operand: Node) -> bool:
    """f32 or bf16, and not known to be empty."""
    return operand.type.dtype in (F32, DType.BF16) and 0 not in operand.shape
