"""Attention by the library, written as its two products with a softmax between them. Takes a
library call with its operands, gives what each of its results is.

    scores = q k^T * scale + mask        weights = exp(scores - max)
    output = weights v / sum             logsumexp = max + log(sum)

The division comes after the product, whose columns are fewer than a row's weights (Dao et al. 2022,
FlashAttention, section 3.1). A row that is masked as a whole gives zeros, as the library's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import LibraryCall, Node, Op, Operand
from hemstitch.ir.types import DType

NAME = "aten._scaled_dot_product_flash_attention_for_cpu.default"
TRANSPOSED = (0, 1, 3, 2)
# Rows of scores: with more of them the library, which skips what is later, takes less time.
MOST_CAUSAL = 512
F32 = DType.F32


@dataclass(frozen=True, slots=True)
class Attention:
    """`q` [batch, heads, rows, features], `k` and `v` with as many rows as a row has `scores`."""

    builder: Builder
    scores: Node
    v: Node
    mask: Node | None
    is_causal: bool
    scale: float

    def result(self, number: int) -> tuple[Node, list[tuple[Node, Node]]]:
        """The value of the call's result with this number, and the products in it, each with what
        is made of it alone."""
        b, scores = self.builder, self._masked()
        top = b.reduce(Op.MAX, scores, (3,), keep=True)
        lowest = b.constant(-inf, F32, top.shape)
        nothing = b.constant(0.0, F32, top.shape)
        top = b.make(Op.WHERE, b.make(Op.EQ, top, lowest), nothing, top)
        below = b.make(Op.SUB, scores, b.broadcast(top, scores.shape))
        weights = b.make(Op.EXP, below)
        total = b.reduce(Op.SUM, weights, (3,), keep=True)
        one = b.constant(1.0, F32, total.shape)
        total = b.make(Op.WHERE, b.make(Op.EQ, total, nothing), one, total)
        if number == 1:
            logsumexp = b.make(Op.ADD, top, b.make(Op.LOG, total))
            return b.reshape(logsumexp, total.shape[:3]), [(self.scores, self.scores)]
        product = b.dot(weights, self.v)
        share = b.broadcast(b.make(Op.RECIPROCAL, total), product.shape)
        output = b.make(Op.MUL, product, share)
        return output, [(self.scores, self.scores), (product, output)]

    def _masked(self) -> Node:
        b, shape = self.builder, self.scores.shape
        scores = b.make(Op.MUL, self.scores, b.constant(self.scale, F32, shape))
        if self.mask is not None:
            scores = b.make(Op.ADD, scores, b.broadcast(self.mask, shape))
        if not self.is_causal:
            return scores
        is_later = b.make(Op.GT, b.iota(shape, 3), b.iota(shape, 2))
        return b.make(Op.WHERE, is_later, b.constant(-inf, F32, shape), scores)


def attention_of(builder: Builder, call: LibraryCall, inputs: Sequence[Node]) -> Attention | None:
    """What the call attends to; None if it is none that is written out here."""
    if call.name != NAME:
        return None
    given = {
        **dict(zip(("q", "k", "v", "dropout", "is_causal"), call.arguments)),
        **dict(call.keywords),
    }
    operands = {
        name: inputs[value.index] for name, value in given.items() if isinstance(value, Operand)
    }
    q, k, v = (operands[name] for name in ("q", "k", "v"))
    if given.get("dropout", 0.0) != 0.0 or not all(map(_is_plain, operands.values())):
        return None
    if not (q.shape[:2] == k.shape[:2] == v.shape[:2]) or 1 in (*q.shape[2:], *k.shape[2:]):
        return None
    features, rows, is_causal = q.shape[3], q.shape[2], bool(given.get("is_causal", False))
    is_short = isinstance(rows, int) and rows <= MOST_CAUSAL
    if not isinstance(features, int) or (is_causal and not is_short):
        return None
    scale = given.get("scale")
    return Attention(
        *(builder, builder.dot(q, builder.permute(k, TRANSPOSED)), v, operands.get("attn_mask")),
        is_causal,
        scale if isinstance(scale, float) else 1 / sqrt(features),
    )


def _is_plain(operand: Node) -> bool:
    """f32, and not known to be empty."""
    return operand.type.dtype is F32 and 0 not in operand.shape
