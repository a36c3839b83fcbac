"""Rules for pooling over windows of images, which lie in the last two axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as cross
from typing import Any

from hemstitch.capture.expressions import Expr, apply, isnan, maximum, multiply_add, where
from hemstitch.capture.rule_context import Context, NotHandled, Rule
from hemstitch.capture.rules.reductions import mean_over
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType

MOST_ELEMENTS = 16  # of a window, which are taken one by one


@dataclass(frozen=True, slots=True)
class PoolingWindows:
    """Height and width of each."""

    size: tuple[int, int]
    steps: tuple[int, int]
    pads: tuple[int, int]
    apart: tuple[int, int] = (1, 1)  # elements of a window

    def parts(
        self, x: Expr, shape: tuple[Dim, ...], fill: float
    ) -> Iterator[tuple[tuple[int, int], Expr]]:
        """For each place in a window what the windows have there: a slice of x, around which
        everything is `fill`. `shape`: of the result."""
        padded = self._padded(x, shape, fill)
        (rows, columns), (down, right) = shape[-2:], self.steps
        for i, j in cross(*map(range, self.size)):
            first, left = i * self.apart[0], j * self.apart[1]
            part = padded.slice(x.rank - 2, first, rows, down)
            yield (i, j), part.slice(x.rank - 1, left, columns, right)

    def _padded(self, x: Expr, shape: tuple[Dim, ...], fill: float) -> Expr:
        """As far as the last window reaches."""
        sides = zip(x.shape[-2:], shape[-2:], self.size, self.steps, self.pads, self.apart)
        lows, sizes = [0] * (x.rank - 2), [*x.shape[:-2]]
        for length, count, size, step, pad, apart in sides:
            lows.append(pad)
            reached = (count - 1) * step + (size - 1) * apart + 1
            is_known = isinstance(reached, int) and isinstance(length, int)
            sizes.append(max(reached, length + pad) if is_known else length + 2 * pad)
        if tuple(sizes) == x.shape:
            return x
        filling = x.builder.constant(fill, x.dtype)
        return x.of(x.builder.pad(x.node, lows, sizes, filling))


def pair(value: Any) -> tuple[int, int]:
    return (value[0], value[-1]) if isinstance(value, tuple) else (value, value)


def _avg_pool2d(
    c: Context,
    x: Expr,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Expr:
    """The sum of one strided slice for each place in the window."""
    height, width = pair(kernel)
    steps = pair(stride) if stride != () else (height, width)
    pads = pair(padding)
    padded = pads != (0, 0)
    if ceil_mode or height * width > MOST_ELEMENTS or (padded and not count_include_pad):
        raise NotHandled
    x = x.cast(x.dtype.compute)
    windows = PoolingWindows((height, width), steps, pads)
    parts = [part for _, part in windows.parts(x, c.shape, 0)]
    # Eager adds to 0: of -0 alone it is no -0.
    return multiply_add(sum(parts[1:], start=parts[0]), 1 / (divisor or height * width), 0.0)


def whole_window(plane: Expr, rows: Dim, columns: Dim) -> tuple[int, int]:
    """The window of adaptive pooling where it is the same for every element."""
    sizes = (*plane.shape[-2:], rows, columns)
    height, width, rows_, columns_ = (size if isinstance(size, int) else 0 for size in sizes)
    if not (height and width and rows_ and columns_) or height % rows_ or width % columns_:
        raise NotHandled
    return height // rows_, width // columns_


def _adaptive_avg_pool2d(c: Context, x: Expr, size: Any) -> Expr:
    rows, columns = c.shape[-2:]
    window = whole_window(x, rows, columns)
    shape = (*c.shape[:-2], rows, window[0], columns, window[1])
    rank = len(shape)
    return mean_over(x.cast(x.dtype.compute).reshape(shape), (rank - 3, rank - 1), keep=False)


def _max_pool2d(
    c: Context,
    x: Expr,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Expr, Expr]:
    """The greatest of each window, and where in the plane it is first; NaN, and where it is last,
    if there is one."""
    size, apart, pads = pair(kernel), pair(dilation), pair(padding)
    windows = PoolingWindows(size, pair(stride) if stride != () else size, pads, apart)
    is_known = all(isinstance(n, int) for n in (*x.shape[-2:], *c.shape[-2:]))
    if not x.dtype.is_float or size[0] * size[1] > MOST_ELEMENTS or (ceil_mode and not is_known):
        raise NotHandled
    return greatest(c, x, windows, c.shape), place_of_greatest(c, x, windows, c.shape)


def greatest(c: Context, x: Expr, windows: PoolingWindows, shape: tuple[Dim, ...]) -> Expr:
    """Of each window. `shape`: of the result."""
    *_, (_, _, last) = _one_by_one(c, x, windows, shape)
    return last


def place_of_greatest(c: Context, x: Expr, windows: PoolingWindows, shape: tuple[Dim, ...]) -> Expr:
    """In the plane, for each window."""
    row, column = (
        c.iota(shape, len(shape) + k) * windows.steps[k] - windows.pads[k] for k in (-2, -1)
    )
    (down, right), width = windows.apart, x.shape[-1]
    # Where nothing is greater than -inf, the first place that is not padding.
    greatest = place(maximum(row, 0), maximum(column, 0), width)
    for (i, j), is_next, _ in _one_by_one(c, x, windows, shape):
        greatest = where(is_next, place(row + i * down, column + j * right, width), greatest)
    return greatest


def cell_of_greatest(c: Context, x: Expr, windows: PoolingWindows, shape: tuple[Dim, ...]) -> Expr:
    """In its window, counted row by row; the first where nothing is greater than -inf."""
    greatest = c.constant(0, DType.I8, shape)
    for (i, j), is_next, _ in _one_by_one(c, x, windows, shape):
        greatest = where(is_next, c.constant(i * windows.size[1] + j, DType.I8), greatest)
    return greatest


def _one_by_one(
    c: Context, x: Expr, windows: PoolingWindows, shape: tuple[Dim, ...]
) -> Iterator[tuple[tuple[int, int], Expr, Expr]]:
    """Each cell of a window, whether it is greater than those before, and the greatest so far."""
    so_far = c.constant(-math.inf, x.dtype, shape)
    for cell, part in windows.parts(x, shape, -math.inf):
        is_next = (part > so_far) | isnan(part)
        so_far = maximum(so_far, part)
        yield cell, is_next, so_far


def place(row: Expr, column: Expr, width: Dim) -> Expr:
    return row * width + column


def _adaptive_max_pool2d(c: Context, x: Expr, size: Any) -> tuple[Expr, Expr]:
    """The greatest of each window, and the first place of it; NaN, and the last place of one."""
    if not x.dtype.is_float:
        raise NotHandled
    outer, (rows, columns) = c.shape[:-2], c.shape[-2:]
    height, width = whole_window(x, rows, columns)
    rank = len(outer)
    tiles = x.reshape((*outer, rows, height, columns, width))
    order = (*range(rank), rank, rank + 2, rank + 1, rank + 3)
    flat = tiles.permute(order).reshape((*outer, rows, columns, height * width))
    inside = flat.reduce(Op.ARGMAX, (rank + 2,))
    places = c.iota(flat.shape, rank + 2).cast(DType.I32)
    last = where(isnan(flat), places, -1).reduce(Op.MAX, (rank + 2,))
    inside = where(last >= 0, last.cast(DType.I64), inside)
    row = c.iota(c.shape, rank) * height + apply(Op.FLOORDIV, inside, width)
    column = c.iota(c.shape, rank + 1) * width + apply(Op.REMAINDER, inside, width)
    return flat.reduce(Op.MAX, (rank + 2,)), place(row, column, x.shape[-1])


POOLING: dict[str, Rule] = {
    "avg_pool2d": _avg_pool2d,
    "_adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "max_pool2d_with_indices": _max_pool2d,
    "adaptive_max_pool2d": _adaptive_max_pool2d,
}
