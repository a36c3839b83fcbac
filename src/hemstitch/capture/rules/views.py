"""Rules for ops that move elements and compute nothing, and for those that only change types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hemstitch.capture.expressions import Expr, equal, where
from hemstitch.capture.rule_context import (
    Context,
    NotHandled,
    Rule,
    axes_of,
    axis_of,
)
from hemstitch.ir.dims import Dim, choice
from hemstitch.ir.types import DType

NO_END = 2**62  # torch writes "to the end" as the greatest int64


def _same(c: Context, x: Expr, *_: Any, **__: Any) -> Expr:
    return x


def _reshape(c: Context, x: Expr, *_: Any, **__: Any) -> Expr:
    return x.reshape(c.shape)


def _expand(c: Context, x: Expr, *_: Any, **__: Any) -> Expr:
    return x.broadcast(c.shape)


def _broadcast_in_dim(c: Context, x: Expr, shape: Any, axes: tuple[int, ...]) -> Expr:
    places = dict(zip(axes, x.shape))
    return x.reshape([places.get(axis, 1) for axis in range(len(c.shape))]).broadcast(c.shape)


def _permute(c: Context, x: Expr, order: tuple[int, ...]) -> Expr:
    return x.permute([axis_of(axis, x.rank) for axis in order])


def _transpose(c: Context, x: Expr, first: int, second: int) -> Expr:
    order = list(range(x.rank))
    if x.rank:
        order[first], order[second] = order[second], order[first]
    return x.permute(order)


def _unfold(c: Context, x: Expr, dim: int, size: Dim, step: Dim) -> Expr:
    axis = axis_of(dim, x.rank)
    if not x.rank or not all(isinstance(n, int) and n > 0 for n in (x.shape[axis], size, step)):
        raise NotHandled
    assert isinstance(size, int) and isinstance(step, int)
    return x.unfold(axis, size, step)


def _from_front(c: Context, index: Dim, size: Dim) -> Dim:
    """An index that counts from the end if negative, as one that does not, but may be in front of
    all if it was."""
    if c.is_never_negative(index):
        return index
    if c.is_never_negative(-1 - index):
        return size + index
    raise NotHandled


def _select(c: Context, x: Expr, dim: int, index: Dim) -> Expr:
    axis = axis_of(dim, x.rank)
    return x.slice(axis, _from_front(c, index, x.shape[axis]), 1).reshape(c.shape)


def _start(c: Context, start: Dim | None, size: Dim, length: Dim) -> Dim:
    """Where a slice of `length` elements begins; torch has checked its bounds."""
    if start is None or length == 0:
        return 0
    first = _from_front(c, start, size)
    return first if c.is_never_negative(first) else choice("max", (0, first))


def _stop(c: Context, end: Dim | None, size: Dim) -> Dim:
    if end is None or (isinstance(end, int) and end >= NO_END):
        return size
    last = _from_front(c, end, size)
    return last if c.is_never_negative(size - last) else choice("min", (last, size))


def _slice(
    c: Context, x: Expr, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Expr:
    axis = axis_of(dim, x.rank)
    size, length = x.shape[axis], c.shape[axis]
    if length == size and step == 1:
        return x
    return x.slice(axis, _start(c, start, size, length), length, step)


def _pieces(c: Context, x: Expr, sizes: Any, dim: int = 0) -> list[Expr]:
    axis = axis_of(dim, x.rank)
    pieces, start = [], 0
    for result in c.results:
        assert result is not None
        pieces.append(x.slice(axis, start, result.shape[axis]))
        start = start + result.shape[axis]  # type: ignore[assignment]
    return pieces


def _unbind(c: Context, x: Expr, dim: int = 0) -> list[Expr]:
    axis = axis_of(dim, x.rank)
    return [x.slice(axis, index, 1).reshape(c.shape) for index in range(len(c.results))]


def _cat(c: Context, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    axis = axis_of(dim, len(c.shape))
    parts = [x for x in tensors if x.rank == len(c.shape)]  # torch lets empty vectors join
    return concat(c, parts, axis)


def concat(c: Context, parts: Sequence[Expr], axis: int) -> Expr:
    kept = [part for part in parts if part.shape[axis] != 0] or list(parts[:1])
    return c.value(c.builder.concat([part.cast(c.dtype).node for part in kept], axis))


def _stack(c: Context, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    axis = axis_of(dim, len(c.shape))
    shape = (*c.shape[:axis], 1, *c.shape[axis + 1 :])
    return concat(c, [x.reshape(shape) for x in tensors], axis)


def _flip(c: Context, x: Expr, dims: tuple[int, ...]) -> Expr:
    for axis in axes_of(dims, x.rank) if dims else ():
        x = x.slice(axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


def _repeat(c: Context, x: Expr, repeats: tuple[Dim, ...]) -> Expr:
    sizes = (1,) * (len(repeats) - x.rank) + x.shape
    apart = [part for size in sizes for part in (1, size)]
    joined = [part for count, size in zip(repeats, sizes) for part in (count, size)]
    return x.reshape(apart).broadcast(joined).reshape(c.shape)


def _pad(c: Context, x: Expr, pads: tuple[int, ...], value: Any = 0) -> Expr:
    if not all(isinstance(pad, int) for pad in pads) or isinstance(value, Expr):
        raise NotHandled
    missing = x.rank - len(pads) // 2
    low = [0] * missing + list(reversed(pads[0::2]))
    high = [0] * missing + list(reversed(pads[1::2]))
    for axis in range(x.rank):
        cut = x.shape[axis] + min(low[axis], 0) + min(high[axis], 0)
        x = x.slice(axis, max(-low[axis], 0), cut)
    fill = c.number(value, x.dtype).node
    return c.value(c.builder.pad(x.node, [max(pad, 0) for pad in low], c.shape, fill))


def _slice_scatter(
    c: Context,
    x: Expr,
    source: Expr,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Expr:
    """Declines where `source` may not be as long as the slice: then the library raises an error, as
    eager does. The trace does not guard it."""
    axis = axis_of(dim, x.rank)
    if step != 1:
        raise NotHandled
    size, length = x.shape[axis], source.shape[axis]
    first, stop = _start(c, start, size, length), _stop(c, end, size)
    if length == 0 and c.is_never_negative(first - stop):
        return x
    if length != stop - first:
        raise NotHandled
    return source.broadcast(c.shape) if length == size else _replaced(c, x, source, axis, first)


def _select_scatter(c: Context, x: Expr, source: Expr, dim: int, index: Dim) -> Expr:
    """Declines what may leave `x`: then the library raises an error, as eager does."""
    axis = axis_of(dim, x.rank)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    first = _from_front(c, index, x.shape[axis])
    if not (c.is_never_negative(first) and c.is_never_negative(x.shape[axis] - first - 1)):
        raise NotHandled
    return _replaced(c, x, source.reshape(shape), axis, first)


def _replaced(c: Context, x: Expr, source: Expr, axis: int, first: Dim) -> Expr:
    last = first + source.shape[axis]
    before, after = x.slice(axis, 0, first), x.slice(axis, last, x.shape[axis] - last)
    return concat(c, [before, source, after], axis)


def _diagonal_distance(c: Context, shape: tuple[Dim, ...]) -> Expr:
    """Column less row, over the last two axes."""
    return c.iota(shape, len(shape) - 1) - c.iota(shape, len(shape) - 2)


def _tril(c: Context, x: Expr, diagonal: int = 0) -> Expr:
    return where(_diagonal_distance(c, x.shape) <= diagonal, x, 0).cast(c.dtype)


def _triu(c: Context, x: Expr, diagonal: int = 0) -> Expr:
    return where(_diagonal_distance(c, x.shape) >= diagonal, x, 0).cast(c.dtype)


def _diagonal_scatter(
    c: Context, x: Expr, source: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Expr:
    """Each row of the matrices compares its columns with one place."""
    rows, columns = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    shape = list(x.shape)
    shape[rows], shape[columns] = source.shape[-1], 1
    rest = [axis for axis in range(x.rank) if axis not in (rows, columns)]
    order = [rest.index(axis) if axis in rest else len(rest) for axis in range(x.rank)]
    order[columns] = len(rest) + 1
    part = source.reshape((*source.shape, 1)).permute(order)
    before = max(-offset, 0)
    low = [before if axis == rows else 0 for axis in range(x.rank)]
    shape[rows] = x.shape[rows]
    padded = c.builder.pad(part.node, low, shape, c.number(0, source.dtype).node)
    is_there = equal(c.iota(x.shape, columns) - c.iota(x.shape, rows), offset)
    return where(is_there, c.value(padded), x).cast(c.dtype)


def _declined(c: Context, *_: Any, **__: Any) -> Expr:
    raise NotHandled


def _view_dtype(c: Context, x: Expr, *_: Any) -> Expr:
    if c.dtype is not x.dtype or c.dtype is DType.OPAQUE:
        raise NotHandled
    return x


_SAME = (
    *("alias", "clone", "contiguous", "detach", "lift", "lift_fresh", "lift_fresh_copy"),
    *("_to_copy", "to", "alias_copy", "detach_copy", "positive", "conj", "_conj", "resolve_conj"),
    *("prims::convert_element_type", "prims::view_of", "conj_physical", "real"),
)
_RESHAPES = (
    *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "view_copy", "flatten"),
    *("unsqueeze_copy", "squeeze_copy", "_reshape_alias", "_reshape_copy", "prims::reshape"),
)

_PLAIN: dict[str, Rule] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_RESHAPES, _reshape),
    "view.dtype": _view_dtype,
    "expand": _expand,
    "expand_copy": _expand,
    "broadcast_to": _expand,
    "prims::broadcast_in_dim": _broadcast_in_dim,
    "permute": _permute,
    "permute_copy": _permute,
    "t": lambda c, x: x.permute(range(x.rank)[::-1]),
    "transpose.int": _transpose,
    "select.int": _select,
    "slice.Tensor": _slice,
    "split.Tensor": _pieces,
    "split_with_sizes": _pieces,
    "chunk": _pieces,
    "unbind.int": _unbind,
    "cat": _cat,
    "stack": _stack,
    "flip": _flip,
    "repeat": _repeat,
    "constant_pad_nd": _pad,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "unfold": _unfold,
    "tril": _tril,
    "triu": _triu,
}

# Functionalisation may turn views into copies of the same name.
_COPIES = {
    "slice_copy.Tensor": "slice.Tensor",
    "select_copy.int": "select.int",
    "transpose_copy.int": "transpose.int",
    "t_copy": "t",
    "unfold_copy": "unfold",
    "split_copy.Tensor": "split.Tensor",
    "split_with_sizes_copy": "split_with_sizes",
    "unbind_copy.int": "unbind.int",
    "unsafe_split.Tensor": "split.Tensor",
    "unsafe_split_with_sizes": "split_with_sizes",
}

VIEWS: dict[str, Rule] = {**_PLAIN, **{copy: _PLAIN[view] for copy, view in _COPIES.items()}}
