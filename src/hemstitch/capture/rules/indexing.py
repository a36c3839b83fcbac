"""Rules for reading by index tensors."""

from __future__ import annotations

from typing import Any

from hemstitch.capture.expressions import Expr, broadcast_shape, where
from hemstitch.capture.rule_context import Context, NotHandled, Rule, axis_of
from hemstitch.ir.dims import Dim
from hemstitch.ir.failure import OUT_OF_RANGE, Failure
from hemstitch.ir.graph import Address
from hemstitch.ir.types import DType, TypeKind

NO_CLASS = Failure("IndexError", "Target is out of bounds.")
LOSS = ("nll_loss_forward", "nll_loss2d_forward")
LOSS_BACKWARD = ("nll_loss_backward", "nll_loss2d_backward")


def outside(c: Context, error: str, axis: int, size: Dim) -> Failure:
    """Of an index along this axis. That of a loss is a class."""
    if c.is_part_of(*LOSS, *LOSS_BACKWARD):
        return NO_CLASS
    known = f" with size {size}" if isinstance(size, int) else ""
    return Failure(error, f"index is out of bounds for dimension {axis}{known}")


def _gather_at(
    c: Context,
    source: Expr,
    places: dict[int, Expr | int],
    shape: tuple[Dim, ...],
    error: str = "",
) -> Expr:
    """Read along each source axis at an index tensor, or at the result's own index of an axis.
    `error`: the exception that an index out of range is, if it names axis and size."""
    operands: list[Expr] = []
    addresses = []
    for axis in range(source.rank):
        place = places[axis]
        if isinstance(place, Expr):
            operands.append(place.broadcast(shape))
            failure = outside(c, error, axis, source.shape[axis]) if error else OUT_OF_RANGE
            addresses.append(Address(operand=len(operands), failure=failure))
        else:
            addresses.append(Address(axis=place))
    nodes = [operand.node for operand in operands]
    return c.value(c.builder.gather(source.node, nodes, addresses, shape))


def _embedding(c: Context, weight: Expr, indices: Expr, *_: Any) -> Expr:
    rows = indices.reshape((*indices.shape, 1))
    return _gather_at(c, weight, {0: rows, 1: indices.rank}, c.shape)


def _index_select(c: Context, x: Expr, dim: int, index: Expr) -> Expr:
    if not x.rank:
        return x
    axis = axis_of(dim, x.rank)
    places: dict[int, Expr | int] = {a: a for a in range(x.rank)}
    places[axis] = index.reshape((c.shape[axis], *(1,) * (x.rank - axis - 1)))
    return _gather_at(c, x, places, c.shape)


def _gather(c: Context, x: Expr, dim: int, index: Expr, *, sparse_grad: bool = False) -> Expr:
    if not x.rank or not index.rank:
        raise NotHandled
    axis = axis_of(dim, x.rank)
    places: dict[int, Expr | int] = {a: a for a in range(x.rank)}
    places[axis] = index
    return _gather_at(c, x, places, c.shape, "RuntimeError")


def _index(c: Context, x: Expr, indices: tuple[Expr | None, ...]) -> Expr:
    places, _ = places_of(x.shape, indices)
    return _gather_at(c, x, places, c.shape, "IndexError")


def places_of(
    shape: tuple[Dim, ...], indices: tuple[Expr | None, ...]
) -> tuple[dict[int, Expr | int], tuple[Dim, ...]]:
    """Where x[indices] has each axis of x, whose shape is given, and its own shape: indexed axes
    become those of the broadcast index, in place if adjacent, else in front."""
    index_of_axis = {axis: index for axis, index in enumerate(indices) if index is not None}
    if any(
        index.dtype.kind is not TypeKind.INT or index.dtype is DType.U8
        for index in index_of_axis.values()
    ):
        raise NotHandled
    block = broadcast_shape(*(index.shape for index in index_of_axis.values()))
    axes = sorted(index_of_axis)
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    front = axes[0] if adjacent else 0
    free = [axis for axis in range(len(shape)) if axis not in index_of_axis]
    behind = len(free) - front
    places: dict[int, Expr | int] = {
        axis: _wrapped(index, shape[axis]).reshape(
            (1,) * (len(block) - index.rank) + index.shape + (1,) * behind
        )
        for axis, index in index_of_axis.items()
    }
    for position, axis in enumerate(free):
        places[axis] = position if position < front else position + len(block)
    kept = [shape[axis] for axis in free]
    return places, (*kept[:front], *block, *kept[front:])


def _wrapped(index: Expr, size: Dim) -> Expr:
    index = index.cast(DType.I64)
    return where(index < 0, index + size, index)


def _take_along(c: Context, x: Expr, index: Expr, dim: int | None = None) -> Expr:
    if dim is None:
        raise NotHandled
    return _gather(c, x, dim, index)


INDEXING: dict[str, Rule] = {
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "take_along_dim": _take_along,
}
