"""Elementwise functions, the operands that they are tried on, and how close to eager is close."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Tensor]

_UNARY_NAMES = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad"),
    *("exp", "frac", "floor", "log1p", "log", "log10", "log2", "neg", "rad2deg", "round", "sin"),
    *("sinc", "sinh", "sign", "tan", "tanh", "trunc", "exp2", "expm1", "nan_to_num"),
    *("reciprocal", "rsqrt", "sqrt", "square", "angle", "isfinite", "isinf", "isnan", "sigmoid"),
    *("erf", "erfc", "logit", "logical_not"),
)
_ACTIVATION_NAMES = (
    *("relu", "elu", "celu", "selu", "silu", "hardsigmoid", "logsigmoid", "mish", "softsign"),
    *("hardshrink", "hardtanh", "relu6", "leaky_relu", "hardswish", "gelu", "softplus"),
)
UNARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _UNARY_NAMES},
    **{name: getattr(F, name) for name in _ACTIVATION_NAMES},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.1, 20.3),
    "hardshrink_0.3": lambda x: F.hardshrink(x, 0.3),
    "clamp": lambda x: x.clamp(0.1, 0.7),
    "clamp_0": lambda x: x.clamp(0, 1),
    "clamp_-0": lambda x: x.clamp(-0.0),
    "clamp_max_-0": lambda x: x.clamp_max(-0.0),
    "hardtanh_0": lambda x: F.hardtanh(x, 0.0, 0.7),
    "round_1": lambda x: x.round(decimals=1),
    "round_-2": lambda x: x.round(decimals=-2),
    "add": lambda x: x + 0.1,
    "sub": lambda x: 0.1 - x,
    "mul": lambda x: x * 0.1,
    "mul_1": lambda x: x * 1,
    "div": lambda x: x / 0.1,
    "div_2": lambda x: x / 2,
    "divided": lambda x: 0.1 / x,
    "floor_divide": lambda x: x // 0.1,
    "remainder": lambda x: x % 3,
    "remainder_0.1": lambda x: x % 0.1,
    "fmod": lambda x: torch.fmod(x, 0.1),
    "div_trunc": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
    "eq": lambda x: x == 0.1,
    "eq_0": lambda x: x == 0,
    "ne": lambda x: x != 1.1,
    "lt": lambda x: x < 0.7,
    "le": lambda x: x <= 0.3,
    "gt": lambda x: x > 0.1,
    "ge": lambda x: x >= 0.7,
    "gt_large": lambda x: x > 3e38,
    "pow_2": lambda x: x**2,
    "pow_-1": lambda x: x**-1,
    "pow_1.5": lambda x: x**1.5,
    "power_of_2": lambda x: 2**x,
    "power_of_-1": lambda x: (-1) ** x,
    "xlogy": lambda x: torch.xlogy(x, 0.3),
    "masked_fill": lambda x: x.masked_fill(x == 0.3, -1.0),
    "where": lambda x: torch.where(x > 0.1, 0.7, x),
    "to_bool": lambda x: x.bool(),
    "to_half": lambda x: x.half(),
    "to_bfloat16": lambda x: x.bfloat16(),
    "to_double": lambda x: x.double(),
    "to_int": lambda x: x.int(),
    "to_long": lambda x: x.long(),
    "to_uint8": lambda x: x.byte(),
}
_BINARY_NAMES = (
    *("add", "sub", "mul", "div", "atan2", "copysign", "eq", "ne", "lt", "le", "gt", "ge", "fmax"),
    *("fmin", "fmod", "remainder", "floor_divide", "logaddexp", "maximum", "minimum"),
    *("logical_and", "heaviside", "isclose", "pow", "hypot", "xlogy"),
)
BINARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _BINARY_NAMES},
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
    "where": lambda x, y: torch.where(x > y, x, y),
}

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_NUMBERS = (
    *(0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.1, 1.5, 2.0, 2.5, 3.0, 3.5, 6.0, 20.0, 0.9277, 1e-45, 1e-40),
    *(2.0**-126, 2.0**-14, 2.0**-24, 1e-4, math.pi / 2, math.pi, 355.0, 88.72, 103.9, 11.09, 17.4),
    *(1e4, 65504.0, 65520.0, 1e6, 2.0**24 + 2, 2.0**28, 2.0**31, 2.0**63, 1e19, 1e20, 3e38, 709.7),
    math.inf,
)


def special(dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    ends = (limits.max, limits.tiny, limits.tiny * limits.eps, 1 - limits.eps / 2, 1 + limits.eps)
    numbers = torch.tensor([*_NUMBERS, *ends], dtype=torch.float64).to(dtype)
    return torch.cat([numbers, -numbers, torch.tensor([math.nan], dtype=dtype)])


def spread(dtype: torch.dtype, count: int) -> Tensor:
    """As many of every binade, of both signs."""
    bits = _BITS[dtype]
    infinity = int(torch.tensor(math.inf, dtype=dtype).view(bits))
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randint(0, infinity, (count,), generator=generator).to(bits).view(dtype)
    signs = torch.randint(0, 2, (count,), generator=generator).bool()
    return torch.where(signs, -numbers, numbers)


def unary_grid(dtype: torch.dtype, count: int) -> Tensor:
    near = torch.linspace(-30, 30, count, dtype=torch.float64).to(dtype)
    return torch.cat([special(dtype), near, spread(dtype, count)])


def binary_grid(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
    line = torch.cat([special(dtype), spread(dtype, count)])
    x, y = torch.meshgrid(line, line, indexing="ij")
    return x.reshape(-1), y.reshape(-1)


def vector_loops(x: Tensor) -> Tensor:
    """`x` first, and so many elements that eager's vectors have no rest among the first."""
    return x.repeat(64)


def scalar_loops(x: Tensor) -> Tensor:
    """Of elements that lie apart, eager computes one after the other."""
    return torch.stack([x, x], 1)[:, 0]


def far_from(result: Tensor, references: Sequence[Tensor], exact: Tensor | None) -> Tensor:
    """Where it is neither as one of eager's, up to two units in the last place, nor as close to the
    exact value as eager is nearby."""
    if not result.dtype.is_floating_point:
        return torch.stack([result != reference for reference in references]).all(0)
    distance = torch.stack([_distance(result, reference) for reference in references]).amin(0)
    far = distance > 2
    if exact is None or result.dtype is torch.float64:
        return far
    far &= _distance(result, exact.to(result.dtype)) > 1
    errors = [error(reference, exact) for reference in references]
    nearby = F.max_pool1d(torch.stack(errors).amin(0)[None], 41, 1, 20)[0]
    return far & ~(error(result, exact) <= 2 * nearby + 1)


def steep(gradient: Tensor, references: Sequence[Tensor], exact: Tensor) -> Tensor:
    """Where a gradient is NaN or infinite and eager's is not, or the other way round, or is further
    off than rounding a result by a unit or eager explain."""
    differ = [
        (gradient.isnan() != other.isnan()) | (gradient.isinf() != other.isinf())
        for other in (*references, exact.to(gradient.dtype))
    ]
    errors = [(reference.double() - exact).abs() for reference in references]
    scale = exact.abs().clamp(1).nan_to_num(0, 0, 0) * torch.finfo(gradient.dtype).eps
    bound = 2 * torch.stack(errors).amax(0) + 8 * scale
    off = (gradient.double() - exact).abs() > bound
    return torch.stack(differ).all(0) | off


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """In representable numbers; infinite where one is NaN or infinite, or zeros differ in sign."""
    first, second = _ordered(a), _ordered(b)
    same_side = (first ^ second) >= 0
    apart = (first.double() - second.double()).abs()
    distance = torch.where(same_side, (first - second).abs().double(), apart)
    differ = (a.isnan() != b.isnan()) | (a.isinf() != b.isinf())
    differ |= (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    return torch.where(a.isnan() & b.isnan(), 0, torch.where(differ, math.inf, distance))


def _ordered(x: Tensor) -> Tensor:
    bits = x.view(_BITS[x.dtype]).long()
    return torch.where(bits >= 0, bits, -(bits & torch.iinfo(_BITS[x.dtype]).max))


def error(result: Tensor, exact: Tensor) -> Tensor:
    """In units in the last place of the exact value."""
    limits = torch.finfo(result.dtype)
    unit = (torch.exp2(exact.abs().log2().floor()) * limits.eps).clamp(limits.tiny * limits.eps)
    return ((result.double() - exact).abs() / unit).nan_to_num(math.inf, math.inf, math.inf)
