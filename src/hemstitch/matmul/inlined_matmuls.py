"""The record of a matmul that became part of a kernel: which library calls it stands for, what it
gives, how its operands lie. `inlining.py` makes the records, `gain.py` weighs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hemstitch.ir.calls import Call
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node
from hemstitch.ir.types import DType
from hemstitch.stitching.refusal import Refusal


@dataclass(frozen=True, slots=True)
class InlinedMatmul:
    """`dot` [..., m, n] stands for a matmul of each of `calls`, for all of its columns or for some.

    `result`: what `dot` and perhaps others are added up to, rounded. `call_columns`: how many
    columns such a call makes at once. `is_transposed`: the call's operands, both transposed, have
    changed places. `sharers`: how many matmuls have the right operand, which is packed once for all
    of them. `is_prepacked`: it is packed before any call, because weights are frozen."""

    dot: Node
    calls: tuple[Call, ...]
    result: Node
    call_columns: Dim
    is_transposed: bool = False
    sharers: int = 1
    is_prepacked: bool = False

    @property
    def left(self) -> Node:
        return self.dot.inputs[0]

    @property
    def right(self) -> Node:
        return self.dot.inputs[1]

    @property
    def call_right(self) -> Node:
        """The right operand of the calls."""
        return self.left if self.is_transposed else self.right

    @property
    def dtype(self) -> DType:
        """Of the operands."""
        return self.left.type.dtype

    @property
    def multiplications(self) -> Dim:
        return self.dot.type.size * self.left.shape[-1]


@dataclass(frozen=True, slots=True)
class PatternSavings:
    """Of a call that a pattern writes with matmuls. `bytes`: that the call moves beside its
    operands and results; less than nothing is what the matmuls move more. `multiplications`: that
    the call does beside those of the matmuls. `in_one_kernel`: lists of matmuls that gain in one
    kernel only."""

    bytes: Dim = 0
    multiplications: int = 0
    in_one_kernel: Sequence[Sequence[Node]] = ()


@dataclass(frozen=True, slots=True)
class InlinedMatmuls:
    """`graph` with matmuls in place of library calls. `patterns`: what calls save that a pattern
    writes. `units`: nodes that planning begins with as one cluster. `fusion_barriers`: reshapes of
    what is to be in memory. `refused`: calls that the library keeps from the beginning."""

    graph: Graph
    matmuls: Mapping[Node, InlinedMatmul]
    patterns: Mapping[Call, PatternSavings]
    units: Sequence[Sequence[Node]]
    fusion_barriers: frozenset[Node]
    refused: Mapping[Call, Refusal]
