"""A product of matrices one of which has a single row or column, written as what it is: memory is
read once and each element multiplied once. Takes the factors, gives the sums as a reduction, which
is planned like any other: with an activation behind it, by rows or by columns, however the matrix
lies. The library, which reads a matrix no faster than it multiplies, takes twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import product
from hemstitch.ir.graph import Node, Op
from hemstitch.rewrites.algebra import reduces_nothing


@dataclass(frozen=True, slots=True)
class VectorProduct:
    """`sums`: like `Builder.dot`, of which no kernel then multiplies tiles. `vector`: a reshape of
    the factor that all rows or columns of the other one read, and so is to be in memory."""

    sums: Node
    vector: Node

    @staticmethod
    def of(builder: Builder, left: Node, right: Node) -> VectorProduct:
        rank, dtype = left.type.rank, left.type.dtype.compute
        shape = (*left.shape[:-1], right.shape[-1], left.shape[-1])
        turned = builder.permute(right, (*range(rank - 2), rank - 1, rank - 2))
        is_row = left.shape[-2] == 1
        left, turned = (apart(builder, left), turned) if is_row else (left, apart(builder, turned))
        rows = builder.reshape(left, (*shape[:-2], 1, shape[-1]))
        columns = builder.reshape(turned, (*shape[:-3], 1, *shape[-2:]))
        factors = (builder.broadcast(builder.cast(x, dtype), shape) for x in (rows, columns))
        sums = builder.reduce(Op.SUM, builder.make(Op.MUL, *factors), (rank,))
        alone = reduces_nothing.function(builder, sums)  # of one row and one column
        return VectorProduct(alone or sums, rows if is_row else columns)


def apart(builder: Builder, value: Node) -> Node:
    """A view of `value`; where a reshape of it is to be in memory, it is written apart from what
    makes the value: nobody makes that again and again."""
    return builder.reshape(value, (product(value.shape),))


def is_vector(left: Node, right: Node) -> bool:
    """[..., m, k] times [..., k, n], of which m or n is 1, or which adds up nothing."""
    return 1 in (*left.shape[-2:], right.shape[-1])
