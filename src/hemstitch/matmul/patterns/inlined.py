"""What a pattern gives: the result of a library call, written with matmuls of the graph IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Node
from hemstitch.matmul.patterns.image_tiles import Parts


@dataclass(frozen=True, slots=True)
class MatmulSum:
    """`total` adds up `products`, and perhaps a bias."""

    products: tuple[Node, ...]
    total: Node


@dataclass(frozen=True, slots=True)
class Inlined:
    """The `value` of one result of a call, and the `sums` of matmuls in it.

    `parts`: the images' parts that it is made in. `stored`: reshapes of what is to be in memory.
    `spared_bytes`: that the call would move beside multiplying for this result, `spared_by_call`
    for all its results together; less than nothing is what the matmuls move more. `fewer`:
    multiplications that the call would do beside those of the matmuls. `together`: lists of
    matmuls that gain in one kernel only. `is_one_matmul`: the call does in one what all the
    matmuls do. `is_unit`: planning begins with the matmuls, and what they are made of and added up
    to, as one.
    """

    value: Node
    sums: Sequence[MatmulSum] = ()
    parts: Parts | None = None
    stored: Sequence[Node] = ()
    spared_bytes: Dim = 0
    spared_by_call: Dim = 0
    fewer: int = 0
    together: Sequence[Sequence[Node]] = ()
    is_one_matmul: bool = True
    is_unit: bool = False

    @staticmethod
    def of(parts: Parts, sums: Sequence[MatmulSum]) -> Inlined:
        return Inlined(parts.images, sums, parts)

    def as_unit(self, stored: Sequence[Node], spared_bytes: Dim, fewer: int) -> Inlined:
        """With what its matmuls save; itself where there are none."""
        if not self.sums:
            return self
        return replace(self, stored=stored, spared_bytes=spared_bytes, fewer=fewer, is_unit=True)

    @property
    def products(self) -> list[tuple[Node, Node]]:
        """Each with what it is added up to."""
        return [
            (product, matmul_sum.total)
            for matmul_sum in self.sums
            for product in matmul_sum.products
        ]


class MatmulPattern(Protocol):
    """A library call that can be written so."""

    def result(self, number: int) -> Inlined:
        """The call's result with this number."""

    def constant_operand(self) -> Node | None:
        """What weights alone decide and the pattern has not been given: it would be a further
        operand of the call."""
