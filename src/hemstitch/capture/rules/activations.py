"""Rules for activation functions and their derivatives, from torch's definitions."""

from __future__ import annotations

import math

from hemstitch.capture.expressions import (
    Expr,
    absolute,
    erf,
    exp,
    expm1,
    log1p,
    maximum,
    minimum,
    multiply_add,
    sigmoid,
    tanh,
    where,
)
from hemstitch.capture.rule_context import Context, Rule
from hemstitch.capture.rules.pointwise import clamp, of_floats

_CUBE = 0.044715
_TANH_SCALE = math.sqrt(2 / math.pi)


def _clip(x: Expr, low: float, high: float) -> Expr:
    return minimum(maximum(x, low), high)


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    if approximate == "tanh":
        return 0.5 * x * (1 + tanh(_TANH_SCALE * (x + _CUBE * x * x * x)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _gelu_backward(grad: Expr, x: Expr, approximate: str = "none") -> Expr:
    if approximate == "tanh":
        inner = tanh(_TANH_SCALE * (x + _CUBE * x * x * x))
        slope = _TANH_SCALE * (1 + 3 * _CUBE * x * x)
        return grad * (0.5 * (1 + inner) + 0.5 * x * _one_less_square(inner) * slope)
    distribution = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    density = exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * multiply_add(x, density, distribution)


def _one_less_square(x: Expr) -> Expr:
    """Rounded once: for what is near to 1 there are no digits to lose."""
    return multiply_add(-x, x, 1)


def _silu_backward(grad: Expr, x: Expr) -> Expr:
    gate = sigmoid(x)
    return grad * gate * multiply_add(x, 1 - gate, 1)


def _hardswish_backward(grad: Expr, x: Expr) -> Expr:
    middle = where(x >= 3, grad, grad * (x / 3 + 0.5))
    return where(x <= -3, 0.0, middle)


def _elu(x: Expr, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    return where(x > 0, x * scale, expm1(x * input_scale) * (alpha * scale))


def _elu_backward(
    grad: Expr, alpha: float, scale: float, input_scale: float, is_result: bool, x: Expr
) -> Expr:
    if is_result:
        negative = grad * input_scale * (x + alpha * scale)
    else:
        negative = grad * (input_scale * alpha * scale) * exp(x * input_scale)
    return where(x > 0, grad * scale, negative)


def _softplus(x: Expr, beta: float = 1, threshold: float = 20) -> Expr:
    scaled = x * beta
    return where(scaled > threshold, x, log1p(exp(scaled)) / beta)


def _softplus_backward(grad: Expr, x: Expr, beta: float, threshold: float) -> Expr:
    return where(x * beta > threshold, grad, grad * sigmoid(x * beta))


def _log_sigmoid_forward(c: Context, x: Expr) -> tuple[Expr, Expr]:
    """The second result is scratch space: on CPU exp(-|x|), elsewhere empty."""
    x = x.cast(x.dtype.compute)
    tail = exp(-absolute(x))
    scratch = c.results[1]
    assert scratch is not None
    buffer = tail if scratch.shape == x.shape else c.constant(0, scratch.dtype, scratch.shape)
    return minimum(x, 0) - log1p(tail), buffer


def _log_sigmoid_backward(c: Context, grad: Expr, x: Expr, buffer: Expr) -> Expr:
    return grad * sigmoid(-x)


def _threshold(c: Context, x: Expr, threshold: float, value: float) -> Expr:
    """The threshold is not rounded to a half type, but to an integer."""
    bound = c.number(threshold, x.dtype.compute)
    return where(x.cast(x.dtype.compute) <= bound, c.number(value, x.dtype), x)


def _hardshrink(c: Context, x: Expr, lam: float = 0.5) -> Expr:
    """torch rounds the threshold to the tensor's type first."""
    return where(absolute(x) <= c.constant(lam, x.dtype), 0.0, x)


def _mish(x: Expr) -> Expr:
    return x * tanh(_softplus(x))


def _mish_backward(grad: Expr, x: Expr) -> Expr:
    gate = tanh(_softplus(x))
    return grad * multiply_add(x * sigmoid(x), _one_less_square(gate), gate)


# Gradients of piecewise linear functions have no rules: torch takes them apart, and so a mask may
# be saved in place of what it is made from.
ACTIVATIONS: dict[str, Rule] = {
    "relu": lambda c, x: maximum(x, 0),
    "relu6": lambda c, x: _clip(x, 0, 6),
    "hardtanh": lambda c, x, low=-1, high=1: clamp(c, x, low, high),
    "leaky_relu": of_floats(lambda x, slope=0.01: where(x > 0, x, x * slope)),
    "_prelu_kernel": of_floats(lambda x, weight: where(x > 0, x, weight * x)),
    "gelu": of_floats(_gelu),
    "silu": of_floats(lambda x: x * sigmoid(x)),
    "hardswish": of_floats(lambda x: x * _clip(x + 3, 0, 6) / 6),
    "hardsigmoid": of_floats(lambda x: _clip(x + 3, 0, 6) / 6),
    "elu": of_floats(_elu),
    "softplus": of_floats(_softplus),
    "mish": of_floats(_mish),
    "log_sigmoid_forward": _log_sigmoid_forward,
    "threshold": _threshold,
    "hardshrink": _hardshrink,
    "softshrink": of_floats(
        lambda x, lam=0.5: where(x > lam, x - lam, where(x < -lam, x + lam, x * 0))
    ),
    "sigmoid_backward": of_floats(lambda grad, y: grad * (1 - y) * y),
    "tanh_backward": of_floats(lambda grad, y: grad * _one_less_square(y)),
    "gelu_backward": of_floats(_gelu_backward),
    "silu_backward": of_floats(_silu_backward),
    "hardswish_backward": of_floats(_hardswish_backward),
    "elu_backward": of_floats(_elu_backward),
    "softplus_backward": of_floats(_softplus_backward),
    "log_sigmoid_backward": _log_sigmoid_backward,
    "mish_backward": of_floats(_mish_backward),
    "hardshrink_backward": of_floats(
        lambda grad, x, lam: where((x >= -lam) & (x <= lam), 0.0, grad)
    ),
    "softshrink_backward": of_floats(
        lambda grad, x, lam: where((x >= -lam) & (x <= lam), 0.0, grad)
    ),
    "native_dropout_backward": of_floats(lambda grad, mask, scale: grad * (mask * scale)),
}
