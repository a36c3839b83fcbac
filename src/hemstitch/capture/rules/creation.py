"""Rules for tensors made from nothing: constants, ranges, random numbers from a seed."""

from __future__ import annotations

from typing import Any

from hemstitch.capture.expressions import Expr, equal, where
from hemstitch.capture.rule_context import Context, Rule
from hemstitch.capture.seeded_random import UNIFORM
from hemstitch.ir.dims import Dim, quotient
from hemstitch.ir.types import DType


def _filled(value: float) -> Rule:
    return lambda c, *_, **__: c.constant(value, c.dtype, c.shape)


def _full(c: Context, _: Any, value: Any, **__: Any) -> Expr:
    if isinstance(value, Expr):
        return value.cast(c.dtype).broadcast(c.shape)
    return c.number(value, c.dtype).broadcast(c.shape)


def _new_full(c: Context, x: Expr, size: Any, value: Any, **__: Any) -> Expr:
    return _full(c, size, value)


def _scalar_tensor(c: Context, value: Any, **__: Any) -> Expr:
    return _full(c, (), value)


def _arange(c: Context, *bounds: Any, **__: Any) -> Expr:
    """(end), (start, end) or (start, end, step), computed in the widest type."""
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else 1
    return _ramp(c, start, step)


def _iota(c: Context, length: Any, *, start: Any, step: Any, **__: Any) -> Expr:
    return _ramp(c, start, step)


def _ramp(c: Context, start: Any, step: Any) -> Expr:
    index = c.iota(c.shape, 0)
    if c.dtype.is_float:
        index = index.cast(DType.F64)
    else:  # torch rounds both before it begins
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
    index = index if step == 1 else index * step
    return index if start == 0 else index + start


def _linspace(c: Context, start: Any, end: Any, steps: Dim, **__: Any) -> Expr:
    """From the nearer end, so that both are exact. Ends of integer ranges are integers."""
    wide = c.dtype.compute if c.dtype.is_float else DType.F64
    if steps == 1:
        return _full(c, (), start)
    first, last = (_full(c, (), x).cast(wide) for x in (start, end))
    index = c.iota(c.shape, 0)
    step = (last - first) / (steps - 1)
    from_start, from_end = first + index * step, last - (-index + (steps - 1)) * step
    return where(index < quotient(steps, 2), from_start, from_end)


def _eye(c: Context, *_: Any, **__: Any) -> Expr:
    return equal(c.iota(c.shape, 0), c.iota(c.shape, 1))


def _uniform(c: Context, seed: Expr, size: Any) -> Expr:
    return c.value(c.builder.philox(seed.node, c.shape))


_EMPTY = (
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    *("empty_permuted", "zeros", "zeros_like", "new_zeros", "_efficientzerotensor"),
)

CREATION: dict[str, Rule] = {
    **dict.fromkeys(_EMPTY, _filled(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1)),
    "full": _full,
    "full_like": _full,
    "new_full": _new_full,
    "scalar_tensor": _scalar_tensor,
    "arange": _arange,
    "prims::iota": _iota,
    "linspace": _linspace,
    "eye": _eye,
    UNIFORM: _uniform,
}
