"""Rules for reductions: sums, extrema with and without their places, moments, norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hemstitch.capture.expressions import (
    Expr,
    absolute,
    apply,
    check,
    equal,
    exp,
    isnan,
    log,
    maximum,
    reciprocal,
    sqrt,
    where,
)
from hemstitch.capture.rule_context import Context, NotHandled, Rule, axes_of
from hemstitch.ir.dims import Dim, choice, may_be_empty, product
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.gpu_numbers import GPU


def count_of(x: Expr, axes: tuple[int, ...]) -> Dim:
    return product(x.shape[axis] for axis in axes)


def mean_over(x: Expr, axes: tuple[int, ...], keep: bool = True) -> Expr:
    return x.reduce(Op.SUM, axes, keep) / count_of(x, axes)


def moments(c: Context, x: Expr, axes: tuple[int, ...]) -> tuple[Expr, Expr]:
    """Mean and the sum of squared distances from it, axes kept: in two passes, of which the second
    finds a row in cache; in one where what is added up lies apart."""
    if x.dtype is DType.F32 and not _are_rows(x, axes):
        mean, squares = _moments_at_once(x, axes)
        return mean.cast(x.dtype), squares.cast(x.dtype)
    return _moments_in_two_passes(x, axes)


def _are_rows(x: Expr, axes: tuple[int, ...]) -> bool:
    return axes == tuple(range(x.rank - len(axes), x.rank))


def _moments_in_two_passes(x: Expr, axes: tuple[int, ...]) -> tuple[Expr, Expr]:
    mean = _mean_of_scaled(x, axes)
    distance = x - mean
    return mean, (distance * distance).reduce(Op.SUM, axes, keep=True)


def _mean_of_scaled(x: Expr, axes: tuple[int, ...]) -> Expr:
    """No sum of numbers below it is an infinity where they are scaled by a power of two, which
    rounds nothing."""
    count = count_of(x, axes)
    if not isinstance(count, int) or count < 2:
        return mean_over(x, axes)
    scale = 2.0 ** (count.bit_length() - 1)
    return (x * (1 / scale)).reduce(Op.SUM, axes, keep=True) * (scale / count)


def _moments_at_once(x: Expr, axes: tuple[int, ...]) -> tuple[Expr, Expr]:
    """In double precision: the difference of two sums loses less than rounding to f32 has lost of
    what was computed."""
    wide, count = x.cast(DType.F64), count_of(x, axes)
    total = wide.reduce(Op.SUM, axes, keep=True)
    # A kernel may compute it again for each row, and dividing takes long.
    mean = total * (1 / count) if isinstance(count, int) and count else total / count
    squares = (wide * wide).reduce(Op.SUM, axes, keep=True) - total * mean
    return mean, maximum(squares, 0.0)


def _moments_from_the_first(x: Expr, axes: tuple[int, ...]) -> tuple[Expr, Expr]:
    """At once too, of distances to the first row: nothing is lost where the mean is far from 0. Of
    what is computed the first row would be computed again for each."""
    sizes = (x.shape[axis] for axis in axes)
    if not _is_read(x) or any(map(may_be_empty, sizes)):
        return _moments_at_once(x, axes)
    first, wide = x, x.cast(DType.F64)
    for axis in axes:
        first = first.slice(axis, 0, 1)
    first = first.cast(DType.F64)
    mean, squares = _moments_at_once(wide - first, axes)
    return first + mean, squares


def _is_read(x: Expr) -> bool:
    """Whether it is in memory before a kernel begins, seen in some way."""
    node = x.node
    while node.op in _SEEN:
        (node,) = node.inputs
    return node.op in (Op.INPUT, Op.RESULT)


_SEEN = frozenset({Op.CAST, Op.BROADCAST, Op.RESHAPE, Op.PERMUTE, Op.SLICE, Op.UNFOLD})


def _sum(c: Context, x: Expr, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    return x.cast(c.dtype.compute).reduce(Op.SUM, axes_of(dim, x.rank), keepdim)


def _nansum(c: Context, x: Expr, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    if x.dtype.is_float:
        x = where(apply(Op.ISNAN, x), 0.0, x)
    return _sum(c, x, dim, keepdim)


def _mean(c: Context, x: Expr, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    return mean_over(x.cast(c.dtype.compute), axes_of(dim, x.rank), keepdim)


def _prod(c: Context, x: Expr, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Expr:
    return x.cast(c.dtype.compute).reduce(Op.PROD, axes_of(dim, x.rank), keepdim)


def _scan(op: Op) -> Rule:
    def rule(c: Context, x: Expr, dim: int, *, dtype: Any = None) -> Expr:
        x = x.cast(c.dtype).cast(c.dtype.compute)
        if not x.rank:
            return x
        (axis,) = axes_of(dim, x.rank)
        length = x.shape[axis]
        rows = product(size for place, size in enumerate(x.shape) if place != axis)
        is_long = isinstance(length, int) and length > GPU.long_scan
        if c.for_gpu and is_long and isinstance(rows, int) and rows < GPU.busy_scans:
            raise NotHandled  # one program walks a row, where the library has many walk it
        if length == 1 and op is Op.CUMSUM:
            return x.reduce(Op.SUM, (axis,), keep=True)
        return x.scan(op, axis)

    return rule


def _extreme(op: Op, name: str) -> Rule:
    def rule(c: Context, x: Expr, dim: Any = None, keepdim: bool = False) -> Expr:
        axes = axes_of(dim, x.rank)
        return _of_some(c, x.reduce(op, axes, keepdim), x, axes, _NOTHING.format(name))

    return rule


def _extreme_and_place(op: Op, place_op: Op) -> Rule:
    def rule(c: Context, x: Expr, dim: int, keepdim: bool = False) -> tuple[Expr, Expr]:
        axes, (axis,) = axes_of(dim, x.rank), axes_of(dim, x.rank) or (0,)
        message = f"{op.value}(): Expected reduction dim {axis} to have non-zero size."
        result = _of_some(c, x.reduce(op, axes, keepdim), x, axes, message, "IndexError")
        return result, _orderable(x).reduce(place_op, axes, keepdim)

    return rule


_NOTHING = (
    "{}(): Expected reduction dim to be specified for input.numel() == 0. "
    "Specify the reduction dim with the 'dim' argument."
)


def _of_some(
    c: Context,
    result: Expr,
    x: Expr,
    axes: tuple[int, ...],
    message: str,
    error: str = "RuntimeError",
) -> Expr:
    """An extreme of `x`; of nothing there is none, and the library says so."""
    sizes = [x.shape[axis] for axis in axes if may_be_empty(x.shape[axis])]
    if not sizes:
        return result
    if c.for_gpu or 0 in sizes:
        raise NotHandled
    count = c.constant(product(sizes), DType.I64)
    return check(count > 0, result, Failure(error, message))


def _top(
    c: Context, x: Expr, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Expr, Expr]:
    """The few greatest, one after the other: each is the maximum of what is left, at its first
    place there. Compared are values, not places of -inf, so that a line may hold that too. The
    maximum is NaN if any is left."""
    if not (isinstance(k, int) and x.rank and largest and x.dtype.is_float):
        raise NotHandled
    (axis,) = axes_of(dim, x.rank)
    size = x.shape[axis]
    # Zen 3: 8 of 256 elements are 1.6 times eager, of 1024 0.5 times; 2 of 65536 are 1.2 times.
    is_long = isinstance(size, int) and size > CPU.long_topk_row
    if k > (CPU.long_topk_elements if is_long else CPU.topk_elements):
        raise NotHandled
    own, place = c.iota(x.shape, axis), c.iota(c.shape, axis)
    left = c.constant(True, DType.BOOL, x.shape)
    values = c.constant(0.0, x.dtype, c.shape)
    places = c.constant(0, DType.I64, c.shape)
    for number in range(k):
        greatest = where(left, x, -math.inf).reduce(Op.MAX, (axis,), keep=True)
        is_greatest = left & (equal(x, greatest) | isnan(x))
        first_place = where(is_greatest, own, x.shape[axis]).reduce(Op.MIN, (axis,), keep=True)
        left = left & apply(Op.NE, own, first_place)
        values = where(equal(place, number), greatest, values)
        places = where(equal(place, number), first_place, places)
    return values, places


def _both_extremes(c: Context, x: Expr, *, dim: Any = None, keepdim: bool = False) -> Any:
    axes, name = axes_of(dim, x.rank), _NOTHING.format("aminmax")
    extremes = (x.reduce(op, axes, keepdim) for op in (Op.MIN, Op.MAX))
    return tuple(_of_some(c, extreme, x, axes, name) for extreme in extremes)


def _place(op: Op) -> Rule:
    def rule(c: Context, x: Expr, dim: Any = None, keepdim: bool = False) -> Expr:
        axes = axes_of(dim, x.rank)
        result = _orderable(x).reduce(op, axes).reshape(c.shape)
        return _of_some(c, result, x, axes, _NOTHING.format(op.value), "IndexError")

    return rule


def _orderable(x: Expr) -> Expr:
    return x.cast(DType.U8) if x.dtype is DType.BOOL else x


def _truth(op: Op) -> Rule:
    def rule(c: Context, x: Expr, dim: Any = None, keepdim: bool = False) -> Expr:
        return x.cast(DType.BOOL).reduce(op, axes_of(dim, x.rank), keepdim)

    return rule


def _count_nonzero(c: Context, x: Expr, dim: Any = None) -> Expr:
    return _sum(c, x.cast(DType.BOOL), dim)


_NORMALISATIONS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
)


def variance(c: Context, x: Expr, axes: tuple[int, ...], correction: Any) -> tuple[Expr, Expr]:
    """Mean and variance, in double precision on processors, as eager has them: squares of what f32
    can hold go beyond it. Eager's norms are in f32."""
    is_norm, count = c.is_part_of(*_NORMALISATIONS), count_of(x, axes)
    if c.for_gpu or is_norm:
        mean, squares = moments(c, x.cast(x.dtype.compute), axes)
    elif x.dtype is DType.F64 or _are_rows(x, axes) or count == 1:
        mean, squares = _moments_in_two_passes(x.cast(DType.F64), axes)
    else:
        mean, squares = _moments_from_the_first(x, axes)
    if not is_norm and count != 1:
        # Eager's comes of steps from one mean to the next: there is none behind an infinity.
        mean = where(isnan(squares), math.nan, mean)
    return mean, squares / _degrees(count, correction)


def _degrees(count: Dim, correction: Any) -> Any:
    if isinstance(count, int):
        return float(max(0, count - correction))
    return choice("max", (0, count - int(correction)))


Variance = Callable[[Expr, Expr], Any]


def _of_variance(finish: Variance) -> dict[str, Rule]:
    """The rules of the three ways in which torch spells var, std, var_mean and std_mean."""

    def rule(c: Context, x: Expr, dim: Any, correction: Any, keepdim: bool) -> Any:
        axes = axes_of(dim, x.rank)
        mean, squares = variance(c, x, axes, correction)
        result = finish(mean, squares)
        if isinstance(result, tuple):
            return tuple(value.reshape(c.shape) for value in result)
        return result.reshape(c.shape)

    def default(c: Context, x: Expr, unbiased: bool = True) -> Any:
        return rule(c, x, None, int(unbiased), False)

    def dim(c: Context, x: Expr, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return rule(c, x, dim, int(unbiased), keepdim)

    def correction(
        c: Context, x: Expr, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        return rule(c, x, dim, 1 if correction is None else correction, keepdim)

    return {"default": default, "dim": dim, "correction": correction}


_VARIANCES: dict[str, Variance] = {
    "var": lambda mean, square: square,
    "std": lambda mean, square: sqrt(square),
    "var_mean": lambda mean, square: (square, mean),
    "std_mean": lambda mean, square: (sqrt(square), mean),
}

_NORMS: dict[float, Callable[[Expr, tuple[int, ...], bool], Expr]] = {
    0: lambda x, axes, keep: x.cast(DType.BOOL).cast(x.dtype).reduce(Op.SUM, axes, keep),
    1: lambda x, axes, keep: absolute(x).reduce(Op.SUM, axes, keep),
    2: lambda x, axes, keep: sqrt((x * x).reduce(Op.SUM, axes, keep)),
    math.inf: lambda x, axes, keep: absolute(x).reduce(Op.MAX, axes, keep),
    -math.inf: lambda x, axes, keep: absolute(x).reduce(Op.MIN, axes, keep),
}


def vector_norm(
    c: Context, x: Expr, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Expr:
    x, axes = x.cast(c.dtype.compute), axes_of(dim, x.rank)
    order = 2 if order is None else order
    if order in _NORMS:
        return _NORMS[order](x, axes, keepdim)
    powers = apply(Op.POW, absolute(x), float(order))
    return apply(Op.POW, powers.reduce(Op.SUM, axes, keepdim), 1 / order)


def _log_sum_exp(c: Context, x: Expr, dim: Any, keepdim: bool = False) -> Expr:
    axes = axes_of(dim, x.rank)
    x = x.cast(c.dtype.compute)
    greatest = x.reduce(Op.MAX, axes, keep=True)
    greatest = where(equal(absolute(greatest), math.inf), 0.0, greatest)
    total = log(exp(x - greatest).reduce(Op.SUM, axes, keep=True)) + greatest
    return total.reshape(c.shape)


def _softmax_parts(c: Context, x: Expr, dim: int) -> tuple[Expr, tuple[int, ...]]:
    """x less its greatest along `dim`, in the compute type of the result."""
    axes = axes_of(dim, x.rank)
    x = x.cast(c.dtype.compute)
    return x - x.reduce(Op.MAX, axes, keep=True), axes


def _softmax(c: Context, x: Expr, dim: int, half_to_float: bool = False) -> Expr:
    """One division a row, where eager divides each element: the sum is at least 1, so this costs
    half a unit in the last place, and division is as slow as half an exp."""
    shifted, axes = _softmax_parts(c, x, dim)
    weights = exp(shifted)
    return weights * reciprocal(weights.reduce(Op.SUM, axes, keep=True))


def _log_softmax(c: Context, x: Expr, dim: int, half_to_float: bool = False) -> Expr:
    shifted, axes = _softmax_parts(c, x, dim)
    return shifted - log(exp(shifted).reduce(Op.SUM, axes, keep=True))


def _softmax_backward(c: Context, grad: Expr, y: Expr, dim: int, dtype: Any = None) -> Expr:
    grad, axes = grad.cast(grad.dtype.compute), axes_of(dim, y.rank)
    return (grad - (grad * y).reduce(Op.SUM, axes, keep=True)) * y


def _log_softmax_backward(c: Context, grad: Expr, y: Expr, dim: int, dtype: Any = None) -> Expr:
    grad = grad.cast(grad.dtype.compute)
    return grad - exp(y) * grad.reduce(Op.SUM, axes_of(dim, y.rank), keep=True)


REDUCTIONS: dict[str, Rule] = {
    "sum": _sum,
    "nansum": _nansum,
    "mean": _mean,
    "prod": _prod,
    "cumsum": _scan(Op.CUMSUM),
    "cumprod": _scan(Op.CUMPROD),
    "amax": _extreme(Op.MAX, "amax"),
    "amin": _extreme(Op.MIN, "amin"),
    "max.default": _extreme(Op.MAX, "max"),
    "min.default": _extreme(Op.MIN, "min"),
    "max.dim": _extreme_and_place(Op.MAX, Op.ARGMAX),
    "min.dim": _extreme_and_place(Op.MIN, Op.ARGMIN),
    "aminmax": _both_extremes,
    "topk": _top,
    "argmax": _place(Op.ARGMAX),
    "argmin": _place(Op.ARGMIN),
    "any": _truth(Op.ANY),
    "all": _truth(Op.ALL),
    "count_nonzero": _count_nonzero,
    "linalg_vector_norm": vector_norm,
    "norm": vector_norm,
    "logsumexp": _log_sum_exp,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
    **{
        f"{name}.{spelling}": rule
        for name, finish in _VARIANCES.items()
        for spelling, rule in _of_variance(finish).items()
    },
    "prims::sum": _sum,
    "prims::var": lambda c, x, dim, correction=1, output_dtype=None: variance(
        c, x, axes_of(dim, x.rank), correction
    )[1].reshape(c.shape),
}
