"""Eager in ways that are as right as its own. What a reduction adds up or compares comes in another
order, off by a rounding or in double precision; elementwise functions run in the loop for vectors,
or in the one for single elements, and are as far from double precision as for operands near by.
What changes by it is nobody's: PyTorch promises neither."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NEAR_BY = 16  # ulps between operands of which eager has errors alike
LANES = 128  # elements behind which no loop for vectors leaves any
# Elementwise, though PyTorch has no tag that says so.
ELEMENTWISE = frozenset(
    f"{name}_backward"
    for name in (
        *("elu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu"),
        *("log_sigmoid", "mish", "softplus", "softshrink"),
    )
)
REDUCTIONS = frozenset(
    (
        *("sum", "nansum", "mean", "prod", "var", "std", "var_mean", "std_mean", "logsumexp"),
        *("amax", "amin", "norm", "linalg_vector_norm"),
    )
)
CHOICES = frozenset(("topk", "kthvalue", "median", "nanmedian", "mode"))
ROUNDING = (
    *("norm", "softmax", "convolution", "cumsum", "cumprod", "logcumsumexp", "dist", "attention"),
    *("sum", "mean", "prod", "var", "std", "upsample", "avg_pool"),
)  # in names, of derivatives too
FUNCTIONS = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "erf", "erfc", "erfinv"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinc", "lgamma", "digamma"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "logit", "rsqrt", "hypot"),
        *("gelu", "silu", "mish", "elu", "softplus", "log_sigmoid_forward", "log_sigmoid"),
        *("xlogy", "special_xlog1py", "special_log_ndtr", "logaddexp", "logaddexp2"),
    )
)
SAMPLED = frozenset(("grid_sampler_2d", "grid_sampler_3d"))
MATMULS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
Call = Callable[..., Any]


def _no_nan(x: Any) -> Any:
    return torch.where(x.isnan(), 1.0, x) if isinstance(x, Tensor) else x


def _interpolated(call: Call, x: Tensor, *how: Any) -> Tensor:
    """What has the weight 0 is not read: an infinity makes no NaN there."""
    double = x.double()
    finite = call(double.nan_to_num(0.0, 0.0, 0.0), *how)
    above, below = (call((double == limit).double(), *how) for limit in (math.inf, -math.inf))
    is_none = (call(x.isnan().double(), *how) != 0) | (above != 0) & (below != 0)
    infinite = torch.where(above != below, (above - below).sign() * math.inf, finite)
    return torch.where(is_none, math.nan, infinite)


OTHER: Mapping[str, Call] = {
    # Of two zeros vectors take the second, single elements the first.
    **dict.fromkeys(("maximum", "minimum"), lambda call, x, y: call(y, x)),
    # IEEE 754 gives the sign of a NaN no meaning; where bf16 moves, eager changes it.
    "signbit": lambda call, x: call(_no_nan(x)),
    "copysign": lambda call, x, y: call(x, _no_nan(y)),
    **dict.fromkeys(
        ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
        _interpolated,
    ),
}


class Otherwise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`seed`: an even one is for vectors and roundings, an odd one for single elements and double
    precision."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_odd = seed % 2 == 1
        self.random = Random(seed)

    def __torch_dispatch__(
        self, call: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = call(*args, **kwargs)
        schema = call._schema
        is_new = not schema.is_mutable and not any(x.alias_info for x in schema.returns)
        if not is_new or torch.Tag.nondeterministic_seeded in call.tags:
            return result
        try:
            other = self._other(call, args, kwargs)
        except (RuntimeError, NotImplementedError, IndexError):  # eager has no such other way
            return result
        _copy(result, other)
        return result

    def _other(self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = call.overloadpacket.__name__
        if name in OTHER and self.is_odd:
            return OTHER[name](call, *args)
        if name in SAMPLED and not self.is_odd:
            return self._with_an_error_near_by(call, args, kwargs, call(*args, **kwargs))
        if torch.Tag.pointwise in call.tags or name in ELEMENTWISE:
            return self._by_elements(name.removesuffix("_backward"), call, args, kwargs)
        if self.is_odd and "dtype" not in kwargs:
            args, kwargs = (
                _changed(torch.Tensor.double, args),
                _changed(torch.Tensor.double, kwargs),
            )
        elif not self.is_odd and (name in MATMULS or any(word in name for word in ROUNDING)):
            args = _changed(self._off_by_a_rounding, args)
        if name in REDUCTIONS or name in CHOICES:
            return self._permuted(name, call, args, kwargs)
        if name in ("mm", "bmm") and args[0].shape[-1] == 1:
            return torch.mul(*args)  # of one step: added to nothing, or not
        if name in MATMULS:
            args = self._permuted_factors(args, MATMULS[name])
        return call(*args, **kwargs)

    def _by_elements(
        self, name: str, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if self.is_odd:
            return _of_single_elements(call, args, kwargs)
        result = _of_vectors(call, args, kwargs)
        if name not in FUNCTIONS:
            return result
        if isinstance(result, Tensor) and result.dtype is torch.float32:
            return self._with_an_error_near_by(call, args, kwargs, result)
        return _changed(self._off_by_a_rounding, result)

    def _off_by_a_rounding(self, x: Tensor, ulps: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(self.random.getrandbits(30))
        steps = torch.randint(-ulps, ulps + 1, x.shape, generator=generator).to(x.dtype)
        return x * (1 + steps * torch.finfo(x.dtype).eps)

    def _with_an_error_near_by(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> Tensor:
        """What double precision gives, as far from it as eager is for operands near by: a
        difference of numbers that cancel, say, which is rounded to few values. Zeros, infinities
        and NaN are those of `result`."""
        near = partial(self._off_by_a_rounding, ulps=NEAR_BY)
        others = _changed(near, args), _changed(near, kwargs)
        error = call(*others[0], **others[1]).double() - _in_double(call, *others)
        is_number = error.isfinite() & result.isfinite() & (result != 0)
        return torch.where(is_number, _in_double(call, args, kwargs) + error, result.double())

    def _order(self, count: int) -> Tensor:
        return torch.tensor(self.random.sample(range(count), count), dtype=torch.int64)

    def _permuted(
        self, name: str, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        x, *others = args
        order = torch.empty(0)
        for axis in _axes(call, args, kwargs):
            order = self._order(x.shape[axis])
            x = x.index_select(axis, order)
            if name == "prod" and self.is_odd:  # where it overflows before there is a zero
                x = x.take_along_dim(x.abs().argsort(axis, descending=True), axis)
        result = call(x, *others, **kwargs)
        if name in CHOICES and isinstance(result, tuple):
            return result[0], order[result[1]]
        return result

    def _permuted_factors(self, args: Sequence[Any], first: int) -> Sequence[Any]:
        x, y = args[first : first + 2]
        order = self._order(x.shape[-1])
        factors = x.index_select(-1, order), y.index_select(max(y.dim() - 2, 0), order)
        return (*args[:first], *factors, *args[first + 2 :])


def _axes(call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    names = [argument.name for argument in call._schema.arguments]
    values = {**dict(zip(names, args)), **kwargs}
    default = -1 if call.overloadpacket.__name__ in CHOICES and "dim" in names else None
    dim = values.get("dim", default)
    if dim is None or dim == []:
        return [*range(args[0].dim())]
    return [dim] if isinstance(dim, int) else [*dim]


def _changed(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return [_changed(change, item) for item in value]
    is_many = isinstance(value, dict)
    return {k: _changed(change, item) for k, item in value.items()} if is_many else value


def _in_double(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    double = torch.Tensor.double
    result: Tensor = call(*_changed(double, args), **_changed(double, kwargs))
    return result.double()


def _of_vectors(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    return _elementwise(lambda x: torch.cat([x, x.new_ones(LANES)]), call, args, kwargs)


def _of_single_elements(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    return _elementwise(lambda x: torch.stack([x, x], 1)[:, 0], call, args, kwargs)


def _elementwise(
    change: Callable[[Tensor], Tensor], call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor:
    """`change`: of flat operands. Beside others, those without an axis say less of the result's
    type."""
    broadcast: Call = torch.broadcast_shapes
    shape = broadcast(*(x.shape for x in args if isinstance(x, Tensor)))

    def changed(value: Any) -> Any:
        is_many = isinstance(value, Tensor) and (value.dim() > 0 or not shape)
        return change(value.expand(shape).flatten()) if is_many else value

    result: Tensor = call(*map(changed, args), **kwargs)
    return result[: shape.numel()].reshape(shape)


def _copy(result: Any, other: Any) -> None:
    if isinstance(result, Tensor):
        result.copy_(other.to(result.dtype))
    elif isinstance(result, (list, tuple)):
        for mine, its in zip(result, other):
            _copy(mine, its)
