"""Rules for writing and adding where index tensors say.

A few indices per line are comparisons. Whole lines, side by side in memory, are added up by a node
of their own; what else there is stays with the library.
"""

from __future__ import annotations

from functools import reduce as fold
from operator import or_
from typing import Any

import torch

from hemstitch.capture.expressions import Expr, apply, check, equal, where
from hemstitch.capture.rule_context import Context, NotHandled, Rule, axis_of
from hemstitch.capture.rules.indexing import LOSS_BACKWARD, outside, places_of
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Address, Op
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU

_ADDED_IN = {
    **{dtype: dtype for dtype in (DType.F32, DType.F64, DType.I32, DType.I64)},
    **dict.fromkeys((DType.F16, DType.BF16), DType.F32),
}


def _sums_at(
    c: Context, source: Expr, places: dict[int, Expr | int], error: str = "RuntimeError"
) -> Expr:
    """Zeros, to which the elements of `source` are added: along each axis of the result at an index
    tensor, or at the source's own index along an axis. The last axis has to be the source's.
    `error`: the exception that an index out of range is."""
    last, dtype = places[len(c.shape) - 1], _ADDED_IN.get(c.dtype)
    if dtype is None or last != source.rank - 1 or c.shape[-1] == 1:
        raise NotHandled
    if c.for_gpu and torch.are_deterministic_algorithms_enabled():
        raise NotHandled  # programs would add in any order
    operands: list[Expr] = []
    addresses = []
    for axis, size in enumerate(c.shape):
        place = places[axis]
        if isinstance(place, int):
            if source.shape[place] != size:
                raise NotHandled
            addresses.append(Address(axis=place))
        elif place.shape[-1] != 1:
            raise NotHandled
        else:
            operands.append(place.broadcast(source.shape))
            failure = outside(c, error, axis, size)
            addresses.append(Address(operand=len(operands), failure=failure))
    nodes = [operand.node for operand in operands]
    sums = c.builder.scatter_add(source.cast(dtype).node, nodes, addresses, c.shape)
    return c.value(sums).cast(c.dtype)


def _decline_unless_zero(x: Expr) -> None:
    """What there is before would be read and written once more."""
    if x.node.op is not Op.CONSTANT or x.node.attr != 0:
        raise NotHandled


def _embedding_backward(
    c: Context, grad: Expr, indices: Expr, _: Dim, padding: int, by_frequency: bool
) -> Expr:
    if by_frequency:
        raise NotHandled
    rows = indices.reshape((*indices.shape, 1))
    if padding >= 0:
        grad = where(equal(rows, padding), 0, grad)
    return _sums_at(c, grad, {0: rows, 1: indices.rank})


def _index_add(c: Context, x: Expr, dim: int, index: Expr, source: Expr, *, alpha: Any = 1) -> Expr:
    _decline_unless_zero(x)
    if not x.rank or not source.rank:
        raise NotHandled
    axis = axis_of(dim, x.rank)
    places: dict[int, Expr | int] = {a: a for a in range(x.rank)}
    places[axis] = index.reshape((source.shape[axis], *(1,) * (x.rank - axis - 1)))
    error = "RuntimeError" if index.dtype is DType.I64 else "IndexError"  # as eager has it
    return _sums_at(c, source if alpha == 1 else source * alpha, places, error)


def _index_put(
    c: Context, x: Expr, indices: tuple[Expr | None, ...], source: Expr, accumulate: bool = False
) -> Expr:
    _decline_unless_zero(x)
    if not accumulate:
        raise NotHandled
    places, shape = places_of(x.shape, indices)
    return _sums_at(c, source.broadcast(shape), places, "IndexError")


def _scatter_add(c: Context, x: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    try:
        axis, hits = _hits(c, x, dim, index)
    except NotHandled:
        return _lines_added(c, x, dim, index, source)
    nothing = -0.0 if x.dtype.is_float else 0  # added to -0.0 too
    for k, hit in enumerate(hits):
        x = x + where(hit, _line_part(source, index, axis, k), nothing)
    return x


def _lines_added(c: Context, x: Expr, dim: int, index: Expr, source: Expr) -> Expr:
    """By an index that is one for each line, as `index[:, None].expand_as(source)` is."""
    _decline_unless_zero(x)
    if not x.rank or index.shape != source.shape or index.node.op is not Op.BROADCAST:
        raise NotHandled
    places: dict[int, Expr | int] = {a: a for a in range(x.rank)}
    places[axis_of(dim, x.rank)] = index.of(index.node.inputs[0])
    return _sums_at(c, source, places)


def _hits(c: Context, x: Expr, dim: int, index: Expr) -> tuple[int, list[Expr]]:
    """For each of a scatter's few indices per line: where it writes, which is where the line's own
    index equals it. One of them has to be in the line."""
    axis = axis_of(dim, x.rank)
    if not x.rank or index.rank != x.rank:
        raise NotHandled
    count = index.shape[axis]
    whole_lines = index.shape == (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if not whole_lines or not isinstance(count, int) or count > CPU.compared_writes:
        raise NotHandled
    compared = count * x.shape[axis]
    # Of more than two in a long line the library's is faster: 8 in lines of 64 elements are 0.45
    # times as fast as eager as comparisons, 0.64 times as a call; 4 are 0.88 and 0.60 times
    # (Zen 3).
    if count > 2 and isinstance(compared, int) and compared > CPU.compared_row:
        raise NotHandled
    index, places = index.cast(DType.I64), c.iota(x.shape, axis)
    parts, last = [index.slice(axis, k, 1) for k in range(count)], x.shape[axis] - 1
    if parts and not c.is_part_of(*LOSS_BACKWARD):  # forward has looked at its classes
        # One check for all: of signs, as an index or its distance to the last is negative.
        signs = fold(or_, (part | apply(Op.SUB, last, part) for part in parts))
        parts[0] = check(signs >= 0, parts[0], outside(c, "RuntimeError", axis, x.shape[axis]))
    return axis, [equal(places, part) for part in parts]


def _scatter(c: Context, x: Expr, dim: int, index: Expr, source: Any, **reduction: Any) -> Expr:
    if reduction:
        raise NotHandled
    if isinstance(source, (int, float)):
        source = c.number(source, x.dtype)
    axis, hits = _hits(c, x, dim, index)
    for k, hit in enumerate(hits):
        x = where(hit, _line_part(source, index, axis, k), x).cast(c.dtype)
    return x


def _line_part(source: Any, index: Expr, axis: int, k: int) -> Any:
    """What the k-th index of each line writes."""
    if not isinstance(source, Expr) or not source.rank:
        return source
    part = source.slice(axis, k, 1)
    if part.shape != (*index.shape[:axis], 1, *index.shape[axis + 1 :]):
        raise NotHandled
    return part


SCATTERING: dict[str, Rule] = {
    "embedding_dense_backward": _embedding_backward,
    "index_add": _index_add,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "scatter.value": _scatter,
    "scatter.src": _scatter,
    "scatter_add": _scatter_add,
}
