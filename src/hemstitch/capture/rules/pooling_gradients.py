"""Rules for the gradients of pooling: what each element of an image gets of the only window that it
lies in, so that nothing is added up by index."""

from __future__ import annotations

from typing import Any

from hemstitch.capture.expressions import Expr, equal, where
from hemstitch.capture.rule_context import Context, NotHandled, Rule
from hemstitch.capture.rules.pooling import (
    MOST_ELEMENTS,
    PoolingWindows,
    cell_of_greatest,
    pair,
    place,
    place_of_greatest,
    whole_window,
)
from hemstitch.ir.dims import Dim
from hemstitch.ir.types import DType


def _avg_pool2d_backward(
    c: Context,
    grad: Expr,
    x: Expr,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Expr:
    """Each window gives its share to every element."""
    window = _tile(x, grad, kernel, stride, padding)
    # Eager adds it to zeros.
    return _spread(grad, window, c.shape) * (1 / (divisor or window[0] * window[1])) + 0.0


def _tile(x: Expr, grad: Expr, kernel: Any, stride: Any, padding: Any) -> tuple[int, int]:
    """The window, where windows tile the plane; of those that overlap the library is as fast."""
    window = pair(kernel)
    if stride not in ((), kernel) or pair(padding) != (0, 0):
        raise NotHandled
    sides = zip(x.shape[-2:], grad.shape[-2:], window)
    if any(size != count * length for size, count, length in sides):
        raise NotHandled
    return window


def _spread(x: Expr, window: tuple[Dim, Dim], shape: tuple[Dim, ...]) -> Expr:
    """Each element repeated over a window, in the compute type."""
    outer, (rows, columns) = x.shape[:-2], x.shape[-2:]
    apart = x.cast(x.dtype.compute).reshape((*outer, rows, 1, columns, 1))
    return apart.broadcast((*outer, rows, window[0], columns, window[1])).reshape(shape)


def _adaptive_avg_pool2d_backward(c: Context, grad: Expr, x: Expr) -> Expr:
    window = whole_window(x, *grad.shape[-2:])
    return _spread(grad, window, c.shape) * (1 / (window[0] * window[1])) + 0.0


def _max_pool2d_backward(
    c: Context,
    grad: Expr,
    x: Expr,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    places: Expr,
) -> Expr:
    if pair(dilation) != (1, 1):
        raise NotHandled
    window = _tile(x, grad, kernel, stride, padding)
    windows = PoolingWindows(window, window, (0, 0))
    is_small = window[0] * window[1] <= MOST_ELEMENTS
    if not is_small or places.node is not place_of_greatest(c, x, windows, grad.shape).node:
        return _of_its_window(c, grad, places, _places(c), window)
    # Forward found the places as we would: a few bits tell them apart in a window.
    cells = cell_of_greatest(c, x, windows, grad.shape)
    return _of_its_window(c, grad, cells, _cells(c, grad, window), window)


def _adaptive_max_pool2d_backward(c: Context, grad: Expr, x: Expr, places: Expr) -> Expr:
    return _of_its_window(c, grad, places, _places(c), whole_window(x, *grad.shape[-2:]))


def _of_its_window(
    c: Context, grad: Expr, greatest: Expr, own: Expr, window: tuple[int, int]
) -> Expr:
    """What each element gets of the window that it lies in, if it is the `greatest` there. `own`:
    where the element is. Eager adds it to 0.0."""
    is_greatest = equal(_spread(greatest, window, c.shape), own)
    return where(is_greatest, _spread(grad + 0.0, window, c.shape), 0)


def _places(c: Context) -> Expr:
    """Of each element in its plane."""
    row, column = (c.iota(c.shape, len(c.shape) + k) for k in (-2, -1))
    return place(row, column, c.shape[-1])


def _cells(c: Context, grad: Expr, window: tuple[int, int]) -> Expr:
    """Of each element in its window."""
    *outer, rows, columns = grad.shape
    shape = (*outer, rows, window[0], columns, window[1])
    row, column = (c.iota(shape, len(shape) + k).cast(DType.I8) for k in (-3, -1))
    return place(row, column, window[1]).reshape(c.shape)


POOLING_GRADIENTS: dict[str, Rule] = {
    "avg_pool2d_backward": _avg_pool2d_backward,
    "_adaptive_avg_pool2d_backward": _adaptive_avg_pool2d_backward,
    "max_pool2d_with_indices_backward": _max_pool2d_backward,
    "adaptive_max_pool2d_backward": _adaptive_max_pool2d_backward,
}
