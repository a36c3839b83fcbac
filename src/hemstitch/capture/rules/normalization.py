"""Rules for normalisation layers that arrive whole."""

from __future__ import annotations

from typing import Any

from hemstitch.capture.expressions import Expr, rsqrt
from hemstitch.capture.rule_context import Context, NotHandled, Rule
from hemstitch.capture.rules.reductions import count_of, mean_over, moments
from hemstitch.ir.dims import Dim, choice
from hemstitch.ir.graph import Op


def _layer_norm(
    c: Context, x: Expr, sizes: tuple[Dim, ...], weight: Expr | None, bias: Expr | None, eps: Any
) -> tuple[Expr, Expr, Expr]:
    axes = tuple(range(x.rank - len(sizes), x.rank))
    x = x.cast(x.dtype.compute)
    mean, squares = moments(c, x, axes)
    scale = rsqrt(squares / count_of(x, axes) + eps)
    return _affine((x - mean) * scale, weight, bias), mean, scale


def _affine(x: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm_backward(
    c: Context,
    grad: Expr,
    x: Expr,
    sizes: tuple[Dim, ...],
    mean: Expr,
    scale: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mask: tuple[bool, bool, bool],
) -> tuple[Expr | None, Expr | None, Expr | None]:
    outer = tuple(range(x.rank - len(sizes)))
    inner = tuple(range(x.rank - len(sizes), x.rank))
    grad, normal = grad.cast(grad.dtype.compute), (x - mean) * scale
    inward = grad if weight is None else grad * weight
    along = (inward * normal).reduce(Op.SUM, inner, keep=True)
    count = count_of(x, inner)
    dx = (inward - (inward.reduce(Op.SUM, inner, keep=True) + normal * along) / count) * scale
    return (
        dx if mask[0] else None,
        (grad * normal).reduce(Op.SUM, outer) if mask[1] and weight is not None else None,
        grad.reduce(Op.SUM, outer) if mask[2] and bias is not None else None,
    )


def _rms_norm(
    c: Context, x: Expr, sizes: tuple[Dim, ...], weight: Expr | None, eps: float | None
) -> tuple[Expr, Expr]:
    if eps is None:
        raise NotHandled
    axes = tuple(range(x.rank - len(sizes), x.rank))
    x = x.cast(x.dtype.compute)
    scale = rsqrt(mean_over(x * x, axes) + eps)
    return _affine(x * scale, weight, None), scale


def _rms_norm_backward(
    c: Context,
    grad: Expr,
    x: Expr,
    sizes: tuple[Dim, ...],
    scale: Expr,
    weight: Expr | None,
    mask: tuple[bool, bool],
) -> tuple[Expr | None, Expr | None]:
    outer = tuple(range(x.rank - len(sizes)))
    inner = tuple(range(x.rank - len(sizes), x.rank))
    grad, normal = grad.cast(grad.dtype.compute), x * scale
    inward = grad if weight is None else grad * weight
    dx = (inward - normal * mean_over(inward * normal, inner)) * scale
    has_weight = mask[1] and weight is not None
    return (
        dx if mask[0] else None,
        (grad * normal).reduce(Op.SUM, outer) if has_weight else None,
    )


def _group_norm(
    c: Context,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    batch: Dim,
    channels: Dim,
    area: Dim,
    groups: int,
    eps: float,
) -> tuple[Expr, Expr, Expr]:
    if not isinstance(channels, int):
        raise NotHandled
    shape = x.shape
    grouped = x.cast(x.dtype.compute).reshape((batch, groups, channels // groups, area))
    mean, squares = moments(c, grouped, (2, 3))
    scale = rsqrt(squares / count_of(grouped, (2, 3)) + eps)
    normal = ((grouped - mean) * scale).reshape(shape)
    result = _affine(normal, *(_per_channel(parameter, x.rank) for parameter in (weight, bias)))
    return result, mean.reshape((batch, groups)), scale.reshape((batch, groups))


def _per_channel(x: Expr | None, rank: int) -> Expr | None:
    return None if x is None else x.reshape((x.shape[0], *(1,) * (rank - 2)))


def _batch_norm_parts(
    c: Context, x: Expr, weight: Expr | None, bias: Expr | None, eps: float
) -> tuple[Expr, Expr, Expr, Expr]:
    """Normalised x, then mean, 1 / deviation and sum of squares for each channel."""
    axes = (0, *range(2, x.rank))
    mean, squares = moments(c, x, axes)
    scale = rsqrt(squares / count_of(x, axes) + eps)
    normal = (x - mean) * scale
    result = _affine(normal, *(_per_channel(parameter, x.rank) for parameter in (weight, bias)))
    channels = (x.shape[1],)
    return result, mean.reshape(channels), scale.reshape(channels), squares.reshape(channels)


def _batch_norm_training(
    c: Context,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr | None,
    running_variance: Expr | None,
    momentum: float,
    eps: float,
) -> tuple[Expr | None, ...]:
    x = x.cast(x.dtype.compute)
    result, mean, scale, squares = _batch_norm_parts(c, x, weight, bias, eps)
    count = count_of(x, (0, *range(2, x.rank)))
    degrees = max(1, count - 1) if isinstance(count, int) else choice("max", (1, count - 1))
    return (
        result,
        mean,
        scale,
        _moved(running_mean, mean, momentum),
        _moved(running_variance, squares / degrees, momentum),
    )


def _moved(running: Expr | None, now: Expr, momentum: float) -> Expr | None:
    return None if running is None else now * momentum + running * (1 - momentum)


def _batch_norm_inference(
    c: Context,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr,
    running_variance: Expr,
    momentum: float,
    eps: float,
) -> Expr:
    x = x.cast(x.dtype.compute)
    scale = rsqrt(running_variance.cast(running_variance.dtype.compute) + eps)
    mean, scale = (_channel_value(parameter, x.rank) for parameter in (running_mean, scale))
    return _affine(
        (x - mean) * scale, *(_per_channel(parameter, x.rank) for parameter in (weight, bias))
    )


def _channel_value(x: Expr, rank: int) -> Expr:
    return x.reshape((x.shape[0], *(1,) * (rank - 2)))


def _empty(c: Context, index: int) -> Expr | None:
    result = c.results[index]
    return None if result is None else c.constant(0, result.dtype, result.shape)


def _batch_norm_functional(
    c: Context,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    running_mean: Expr,
    running_variance: Expr,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Expr | None, ...]:
    if training:
        return _batch_norm_training(
            c, x, weight, bias, running_mean, running_variance, momentum, eps
        )
    result = _batch_norm_inference(
        c, x, weight, bias, running_mean, running_variance, momentum, eps
    )
    return result, _empty(c, 1), _empty(c, 2), running_mean, running_variance


def _batch_norm_no_statistics(
    c: Context,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Expr | None, ...]:
    return _batch_norm_training(c, x, weight, bias, None, None, momentum, eps)[:3]


def _batch_norm_no_training(c: Context, *arguments: Any) -> tuple[Expr | None, ...]:
    return _batch_norm_inference(c, *arguments), _empty(c, 1), _empty(c, 2)


NORMALIZATION: dict[str, Rule] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_group_norm": _group_norm,
    "_native_batch_norm_legit_functional": _batch_norm_functional,
    "_native_batch_norm_legit.no_stats": _batch_norm_no_statistics,
    "_native_batch_norm_legit_no_training": _batch_norm_no_training,
}
