"""`tl.reduce` and `tl.associative_scan` with any function, on whole arrays at a time.

Triton's interpreter calls the function once for each element. Neighbours are combined pair by
pair, so the order of operands is kept; hardware groups them in yet another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl

from testing.emulator.numerics import Array
from testing.emulator.tensors import numpy_type, tensor

Columns = list[Array]  # one array for each member of the tuple; the reduced axis is the last


def reduce(values: Any, axis: Any, combine: Any, keep_dims: Any = False, **ignored: object) -> Any:
    """A tensor, or a tuple of them; `axis` None: over all."""
    members, shape = _members(values), _members(values)[0].shape
    flat, keep = _plain(axis) is None, bool(_plain(keep_dims))
    place = -1 if flat else int(_plain(axis))
    moved = [np.moveaxis(_flattened(each, flat), place, -1) for each in members]
    types = [each.dtype for each in members]
    reduced = [column[..., 0] for column in _tree(moved, types, combine)]
    if keep:
        kept = [1] * len(shape) if flat else None
        reduced = [x.reshape(kept) if kept else np.expand_dims(x, place) for x in reduced]
    return _packed(reduced, types, values)


def associative_scan(
    values: Any, axis: Any, combine: Any, reverse: Any = False, **ignored: object
) -> Any:
    members = _members(values)
    place, backwards = int(_plain(axis)), bool(_plain(reverse))
    columns = [np.moveaxis(each.handle.data, place, -1) for each in members]
    types = [each.dtype for each in members]
    turned = [x[..., ::-1] if backwards else x for x in columns]
    scanned = _prefixes(turned, types, combine)
    turned = [x[..., ::-1] if backwards else x for x in scanned]
    return _packed([np.moveaxis(x, -1, place) for x in turned], types, values)


def _tree(columns: Columns, types: Sequence[Any], combine: Any) -> Columns:
    known = _known(columns, types, combine)
    if known is not None:
        return known
    while columns[0].shape[-1] > 1:
        left, right = [x[..., 0::2] for x in columns], [x[..., 1::2] for x in columns]
        columns = _combined(combine, left, right, types)
    return columns


def _known(columns: Columns, types: Sequence[Any], combine: Any) -> Columns | None:
    """The functions of `tl.sum`, `tl.max` and `tl.min`, at the speed of NumPy. The maximum of a
    number and NaN is the number, as it is on hardware."""
    (column, *others), dtype = columns, types[0]
    if others or dtype == tl.bfloat16:
        return None
    if combine is tl.standard._sum_combine:
        return [_halves(np.add, column)]
    if combine is tl.standard._elementwise_max:
        return [np.fmax.reduce(column, axis=-1, keepdims=True)]
    if combine is tl.standard._elementwise_min:
        return [np.fmin.reduce(column, axis=-1, keepdims=True)]
    return None


def _halves(function: Callable[[Array, Array], Array], column: Array) -> Array:
    while (count := column.shape[-1]) > 1:
        column = function(column[..., : count // 2], column[..., count // 2 :])
    return column


def _prefixes(columns: Columns, types: Sequence[Any], combine: Any) -> Columns:
    distance = 1
    while distance < columns[0].shape[-1]:
        earlier = [np.roll(x, distance, -1) for x in columns]  # those that wrap are not used
        both = _combined(combine, earlier, columns, types)
        columns = [
            np.concatenate([x[..., :distance], y[..., distance:]], -1)
            for x, y in zip(columns, both)
        ]
        distance *= 2
    return columns


def _combined(combine: Any, left: Columns, right: Columns, types: Sequence[Any]) -> Columns:
    operands = [tensor(x, dtype) for side in (left, right) for x, dtype in zip(side, types)]
    result = combine(*operands)
    results = result if isinstance(result, (tuple, tl.tuple)) else (result,)
    return [
        np.broadcast_to(_data(each), left[0].shape).astype(numpy_type(dtype), copy=False)
        for each, dtype in zip(results, types, strict=True)
    ]


def _data(value: Any) -> Any:
    return value.handle.data if isinstance(value, tl.tensor) else _plain(value)


def _flattened(member: Any, flat: bool) -> Array:
    data: Array = member.handle.data
    return data.reshape(-1) if flat else data


def _members(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (tuple, tl.tuple)) else (values,)


def _packed(arrays: Columns, types: Sequence[Any], values: Any) -> Any:
    results = tuple(tensor(x, dtype) for x, dtype in zip(arrays, types))
    return results if isinstance(values, (tuple, tl.tuple)) else results[0]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value
