"""Rules for elementwise arithmetic, comparisons and logic. Operands may be numbers or tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from hemstitch.capture.checked_ops import CHECKED
from hemstitch.capture.expressions import (
    Expr,
    Term,
    absolute,
    apply,
    check,
    constant,
    equal,
    exp,
    expm1,
    floating,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    multiply_add,
    promote,
    reciprocal,
    rsqrt,
    sign,
    sqrt,
    trunc,
    where,
)
from hemstitch.capture.rule_context import Context, NotHandled, Rule, can_hold
from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.runtime.torch_dtypes import TORCH_DTYPES

BY_ZERO = Failure("RuntimeError", "ZeroDivisionError")  # as PyTorch words it
LARGE = 2.0**28  # its square is far from overflow, and x + 1 == x in float32 from here on


def of_floats(function: Callable[..., Any]) -> Rule:
    """The rule that calls `function` on operands that have become floats."""

    def rule(c: Context, *arguments: Any, **keywords: Any) -> Any:
        dtype = floating(*(value for value in arguments if isinstance(value, Expr)))
        return function(
            *(value.cast(dtype) if isinstance(value, Expr) else value for value in arguments),
            **keywords,
        )

    return rule


def of_any(function: Callable[..., Any]) -> Rule:
    return lambda c, *arguments, **keywords: function(*arguments, **keywords)


def _rounded(c: Context, x: Term, y: Term, exact_divisor: bool) -> tuple[Term, Term]:
    """As values of the half type, if any, that torch promotes them to: its kernels take such and
    then compute in f32. `exact_divisor`: but a number that comes second they take as it is, and
    on GPUs any number."""
    dtype = promote(x, y)
    if dtype.compute is dtype:
        return x, y
    keeps_x, keeps_y = (c.for_gpu and is_number(term) for term in (x, y))
    keeps_y |= exact_divisor and is_number(y)
    return (
        x if keeps_x else _as_type(c, x, dtype),
        y if keeps_y else _as_type(c, y, dtype),
    )


def is_number(term: Term) -> bool:
    """Or a tensor of rank 0, which torch treats as one."""
    return not isinstance(term, Expr) or term.rank == 0


def _as_type(c: Context, term: Term, dtype: DType) -> Expr:
    return term.cast(dtype) if isinstance(term, Expr) else c.constant(term, dtype)


def elementwise(op: Op) -> Rule:
    return of_any(lambda *operands: apply(op, *operands))


def rounded_elementwise(op: Op, exact_divisor: bool = False) -> Rule:
    return lambda c, x, y: apply(op, *_rounded(c, x, y, exact_divisor))


def float_elementwise(op: Op) -> Rule:
    return of_floats(lambda *operands: apply(op, *operands))


def to_bool(x: Expr) -> Expr:
    return x.cast(DType.BOOL)


def _add(c: Context, x: Term, y: Term, alpha: Any = 1) -> Term:
    return _sum(c, Op.ADD, x, y, alpha)


def _sub(c: Context, x: Term, y: Term, alpha: Any = 1) -> Term:
    return _sum(c, Op.SUB, x, y, alpha)


def _rsub(c: Context, x: Term, y: Term, alpha: Any = 1) -> Term:
    return _sum(c, Op.SUB, y, x, alpha)


def _sum(c: Context, op: Op, x: Term, y: Term, alpha: Any) -> Expr:
    if op is Op.SUB and any(_is_bool(term) for term in (x, y)):
        raise NotHandled  # eager refuses these three
    if isinstance(alpha, float) and not c.dtype.is_float:
        raise NotHandled
    if isinstance(alpha, bool) and c.dtype is not DType.BOOL:
        raise NotHandled
    x, y = _rounded(c, x, y, exact_divisor=False)
    if not c.dtype.is_float or is_one(alpha):
        return apply(op, x, _scaled(c, y, alpha, c.dtype))
    factor = _factor(c, alpha, c.dtype)
    if not c.for_gpu:  # there it is of the type that is computed with
        factor = factor.cast(c.dtype).cast(c.dtype.compute)
    return multiply_add(y, -factor if op is Op.SUB else factor, x)


def _is_bool(term: Term) -> bool:
    return isinstance(term, bool) or (isinstance(term, Expr) and term.dtype is DType.BOOL)


def is_one(factor: Any) -> bool:
    return isinstance(factor, (int, float)) and factor == 1


def _scaled(c: Context, x: Term, factor: Any, dtype: DType) -> Term:
    """`factor` is a number of type `dtype`, for an integer type a whole one."""
    return x if is_one(factor) else apply(Op.MUL, x, _factor(c, factor, dtype))


def _factor(c: Context, factor: Any, dtype: DType) -> Expr:
    if isinstance(factor, Expr):
        return factor.cast(dtype.compute)
    number = c.number(factor, dtype)
    return number.cast(dtype.compute)


def _div(c: Context, x: Term, y: Term, rounding_mode: str | None = None) -> Expr:
    x, y = _rounded(c, x, y, exact_divisor=True)
    if rounding_mode is None:
        result: Expr = of_floats(lambda a, b: a / b)(c, x, y)
        return result
    if rounding_mode == "floor":
        return _divided(Op.FLOORDIV, exact_divisor=True)(c, x, y)
    if c.dtype.is_float:
        quotient = apply(Op.DIV, x, y)  # torch rounds it first where the divisor is no number
        return trunc(quotient if is_number(y) else quotient.cast(c.dtype))
    return _divided(Op.TRUNCDIV)(c, x, y)


def _divided(op: Op, exact_divisor: bool = False) -> Callable[..., Expr]:
    """On processors an integer has no quotient by zero, and no remainder; on GPUs it has some."""

    def rule(c: Context, x: Term, y: Term) -> Expr:
        is_plain = isinstance(y, int) and c.constant(y, c.dtype).node.attr != 0
        if c.dtype.is_float or c.for_gpu or is_plain:
            return apply(op, *_rounded(c, x, y, exact_divisor))
        divisor = y.cast(c.dtype) if isinstance(y, Expr) else c.constant(y, c.dtype)
        divisor = divisor.broadcast(c.shape)
        dividend = x.cast(c.dtype) if isinstance(x, Expr) else x
        return apply(op, dividend, check(divisor.cast(DType.BOOL), divisor, BY_ZERO))

    return rule


_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: sqrt,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -0.5: rsqrt,
    -1: reciprocal,
    -2: lambda x: reciprocal(x * x),
}


def _pow(c: Context, x: Term, exponent: Term) -> Expr:
    """Of values of the result's type: a half type's even if they are numbers."""
    base = _computed(c, x)
    if not isinstance(x, Expr) or not isinstance(exponent, (int, float)):
        return apply(Op.POW, base, _computed(c, exponent))
    if exponent < 0 and not c.dtype.is_float:
        raise NotHandled  # eager refuses it
    if c.dtype is DType.F16 and abs(exponent) == 0.5 and not c.for_gpu:
        base = where(equal(base, -math.inf), math.inf, base + 0.0)  # eager's is pow, not sqrt
    short = _POWERS.get(exponent)
    if short is not None and (c.dtype.is_float or exponent > 0):
        return short(base)
    return apply(Op.POW, base, _computed(c, exponent))


def _computed(c: Context, x: Term) -> Expr:
    rounded = x.cast(c.dtype) if isinstance(x, Expr) else c.number(x, c.dtype)
    return rounded.cast(c.dtype.compute)


def clamp(c: Context, x: Expr, low: Term | None = None, high: Term | None = None) -> Expr:
    numbers = (bound for bound in (low, high) if isinstance(bound, (int, float)))
    if not all(can_hold(c.dtype, number) for number in numbers):
        raise NotHandled
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def _lerp(start: Expr, end: Expr, weight: Term) -> Expr:
    """Exact at both ends: from whichever is nearer."""
    difference = end - start
    if isinstance(weight, (int, float)):
        if abs(weight) < 0.5:
            return multiply_add(difference, weight, start)
        return multiply_add(difference, weight - 1, end)
    weight = weight if isinstance(weight, Expr) else constant(start.builder, weight, start.dtype)
    return where(
        absolute(weight) < 0.5,
        multiply_add(difference, weight, start),
        multiply_add(difference, weight - 1, end),
    )


def _addcmul(c: Context, x: Expr, a: Expr, b: Expr, value: Any = 1) -> Expr:
    if c.for_gpu and c.dtype.is_float and not is_one(value):
        return multiply_add(_factor(c, value, c.dtype.compute), a * b, x)
    return multiply_add(_scaled(c, a, value, c.dtype.compute), b, x)


def _addcdiv(c: Context, x: Expr, a: Expr, b: Expr, value: Any = 1) -> Expr:
    if c.for_gpu and not is_one(value):
        return multiply_add(_factor(c, value, c.dtype.compute), a / b, x)
    return x + _scaled(c, a, value, c.dtype.compute) / b


def _where(c: Context, condition: Expr, x: Term, y: Term) -> Expr:
    if isinstance(x, Expr) or isinstance(y, Expr):
        return where(to_bool(condition), x, y)
    return where(to_bool(condition), c.constant(x, c.dtype), c.constant(y, c.dtype))


def _masked_fill(c: Context, x: Expr, mask: Expr, value: Term) -> Expr:
    value = value.cast(x.dtype) if isinstance(value, Expr) else c.number(value, x.dtype)
    return where(mask, value, x).cast(c.dtype)


def _fill(c: Context, x: Expr, value: Term) -> Expr:
    if isinstance(value, Expr):
        return value.cast(c.dtype).broadcast(c.shape)
    return c.number(value, c.dtype).broadcast(c.shape)


def _copy(c: Context, x: Expr, source: Term, non_blocking: bool = False) -> Expr:
    """A number is a tensor first, and so may be one that the type cannot hold."""
    if not isinstance(source, Expr):
        source = c.constant(source, DType.F64 if isinstance(source, float) else DType.I64)
    return source.cast(c.dtype).broadcast(c.shape)


def _always(c: Context, value: bool) -> Expr:
    return c.constant(value, DType.BOOL, c.shape)


def _isnan(c: Context, x: Expr) -> Expr:
    return isnan(x) if x.dtype.is_float else _always(c, False)


def _isinf(c: Context, x: Expr) -> Expr:
    return equal(absolute(x), math.inf) if x.dtype.is_float else _always(c, False)


def _isfinite(c: Context, x: Expr) -> Expr:
    return absolute(x) < math.inf if x.dtype.is_float else _always(c, True)


def _checked(c: Context, condition: Expr, x: Expr, error: str, message: str) -> Expr:
    return check(condition, x, Failure(error, message))


def _sign_bit(x: Expr) -> Expr:
    if not x.dtype.is_float:
        return x < 0
    return (x < 0) | (equal(x, 0) & (reciprocal(x) < 0))


def _copysign(x: Expr, y: Term) -> Expr:
    if isinstance(y, Expr):
        return where(_sign_bit(y), -absolute(x), absolute(x))
    assert isinstance(y, (int, float))
    return -absolute(x) if math.copysign(1, y) < 0 else absolute(x)


def _nan_to_num(
    c: Context,
    x: Expr,
    nan: float | None = None,
    positive: float | None = None,
    negative: float | None = None,
) -> Expr:
    if not x.dtype.is_float:
        return x
    limits = torch.finfo(TORCH_DTYPES[x.dtype])
    result = where(isnan(x), 0.0 if nan is None else nan, x)
    result = where(equal(x, math.inf), limits.max if positive is None else positive, result)
    return where(equal(x, -math.inf), limits.min if negative is None else negative, result)


def _hypot(x: Expr, y: Expr) -> Expr:
    """Infinite where one of both is, whatever the other."""
    x, y = absolute(x), absolute(y)
    large = maximum(x, y)
    ratio = minimum(x, y) / large
    result = where(equal(large, 0), large, large * sqrt(1 + ratio * ratio))
    return where(equal(x, math.inf) | equal(y, math.inf), math.inf, result)


def _log_add_exp(x: Expr, y: Expr) -> Expr:
    large = maximum(x, y)
    same_infinity = equal(x, y) & equal(absolute(x), math.inf)
    return where(same_infinity, x, large + log1p(exp(-absolute(x - y))))


def _log_add_exp2(x: Expr, y: Expr) -> Expr:
    large = maximum(x, y)
    same_infinity = equal(x, y) & equal(absolute(x), math.inf)
    tail = log1p(apply(Op.EXP2, -absolute(x - y))) * (1 / math.log(2))
    return where(same_infinity, x, large + tail)


def _x_log(logarithm: Callable[[Expr], Expr]) -> Rule:
    def rule(c: Context, x: Term, y: Term) -> Expr:
        x, y = (_as_type(c, term, c.dtype).cast(c.dtype.compute) for term in (x, y))
        return where(isnan(y), math.nan, where(equal(x, 0), 0.0, x * logarithm(y)))

    return rule


def _asinh(x: Expr) -> Expr:
    size = absolute(x)
    near = log1p(size + size * size / (1 + sqrt(size * size + 1)))
    return _copysign(where(size > LARGE, log(size) + math.log(2), near), x)


def _acosh(x: Expr) -> Expr:
    above = x - 1
    near = log1p(above + sqrt(above * (x + 1)))
    return where(x < 1, math.nan, where(x > LARGE, log(x) + math.log(2), near))


def _atanh(x: Expr) -> Expr:
    return 0.5 * (log1p(x) - log1p(-x))


def _logit(x: Expr, eps: float | None = None) -> Expr:
    if eps is not None:
        x = minimum(maximum(x, eps), 1 - eps)
    return log(x / (1 - x))


def _round(c: Context, x: Expr, *, decimals: int = 0) -> Expr:
    if not x.dtype.is_float:
        return x
    x, scale = x.cast(x.dtype.compute), 10.0 ** abs(decimals)
    if decimals < 0:
        return apply(Op.ROUND, x / scale) * scale
    return apply(Op.ROUND, x * scale) / scale if decimals else apply(Op.ROUND, x)


def _rounding(op: Op) -> Rule:
    return lambda c, x: apply(op, x) if x.dtype.is_float else x


def _logical(op: Op) -> Rule:
    return lambda c, *operands: apply(op, *map(to_bool, operands))


def _angle(x: Expr) -> Expr:
    """Of real numbers."""
    half_turn = constant(x.builder, math.pi, x.dtype)
    return where(isnan(x), x, where(x < 0, half_turn, 0.0))


def _heaviside(x: Expr, at_zero: Expr) -> Expr:
    return where(equal(x, 0), at_zero, where(isnan(x), 0, where(x > 0, 1, 0)).cast(at_zero.dtype))


_COMPARISONS = {name: getattr(Op, name.upper()) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# An operation of the IR on floats that has the name of ATen's is its formula, unless a row says
# otherwise.
_OF_FLOATS = {
    op.value: float_elementwise(op)
    for op, row in ELEMENTWISE.items()
    if row.is_of_floats and hasattr(torch.ops.aten, op.value)
}
_BITWISE = {
    "bitwise_and": Op.AND,
    "bitwise_or": Op.OR,
    "bitwise_xor": Op.XOR,
    "__and__": Op.AND,
    "__or__": Op.OR,
    "__xor__": Op.XOR,
    "bitwise_left_shift": Op.SHL,
    "bitwise_right_shift": Op.SHR,
    "__lshift__": Op.SHL,
    "__rshift__": Op.SHR,
}

POINTWISE: dict[str, Rule] = {
    **{name: rounded_elementwise(op) for name, op in _COMPARISONS.items()},
    **_OF_FLOATS,
    **{name: elementwise(op) for name, op in _BITWISE.items()},
    **{name: _rounding(getattr(Op, name.upper())) for name in ("floor", "ceil", "trunc")},
    "special_erfc": float_elementwise(Op.ERFC),
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": rounded_elementwise(Op.MUL, exact_divisor=True),
    "div": _div,
    "true_divide": _div,
    "floor_divide": _divided(Op.FLOORDIV, exact_divisor=True),
    "fmod": _divided(Op.FMOD),
    "remainder": _divided(Op.REMAINDER),
    "pow": _pow,
    "neg": of_any(lambda x: -x),
    "abs": lambda c, x: x if x.dtype is DType.BOOL else absolute(x),
    "sign": lambda c, x: x if x.dtype is DType.BOOL else sign(x),
    "sgn": lambda c, x: x if x.dtype is DType.BOOL else sign(x),
    "square": of_any(lambda x: x * x),
    "round": _round,
    "angle": of_floats(_angle),
    "ldexp": of_floats(lambda x, exponent: x * apply(Op.EXP2, exponent)),
    "frac": of_any(lambda x: x - trunc(x)),
    "deg2rad": of_floats(lambda x: x * (math.pi / 180)),
    "rad2deg": of_floats(lambda x: x * (180 / math.pi)),
    "maximum": of_any(maximum),
    "minimum": of_any(minimum),
    "max.other": of_any(maximum),
    "min.other": of_any(minimum),
    "fmax": of_any(lambda x, y: where(isnan(x), y, where(isnan(y), x, maximum(x, y)))),
    "fmin": of_any(lambda x, y: where(isnan(x), y, where(isnan(y), x, minimum(x, y)))),
    "clamp": clamp,
    "clamp_min": clamp,
    "clamp_max": lambda c, x, high: clamp(c, x, None, high),
    "hypot": of_floats(_hypot),
    "logaddexp": of_floats(_log_add_exp),
    "logaddexp2": of_floats(_log_add_exp2),
    "xlogy": _x_log(log),
    "special_xlog1py": _x_log(log1p),
    "asinh": of_floats(_asinh),
    "acosh": of_floats(_acosh),
    "atanh": of_floats(_atanh),
    "logit": of_floats(_logit),
    "sinc": of_floats(lambda x: where(equal(x, 0), 1, apply(Op.SIN, x * math.pi) / (x * math.pi))),
    "lerp": of_any(_lerp),
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "prims::fma": of_any(multiply_add),
    "where": _where,
    CHECKED: _checked,
    "masked_fill": _masked_fill,
    "fill": _fill,
    "copy": _copy,
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
    "signbit": of_any(_sign_bit),
    "copysign": of_floats(_copysign),
    "nan_to_num": _nan_to_num,
    "heaviside": of_any(_heaviside),
    "bitwise_not": of_any(lambda x: ~x),
    "logical_not": of_any(lambda x: ~to_bool(x)),
    "logical_and": _logical(Op.AND),
    "logical_or": _logical(Op.OR),
    "logical_xor": _logical(Op.XOR),
    "expm1": of_floats(expm1),
}
