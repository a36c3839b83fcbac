"""Elementwise functions over the whole range of each type, and on special values, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.capture import elementwise
from tests.capture.elementwise import Function
from tests.compiled import watched
from tests.effort import IS_WHOLE, some

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
TOGETHER = 45  # functions in one graph
# Compared with eager alone, the digits that a difference of rounded numbers cancels are lost.
CANCELLING = ("logaddexp", "mish", "gelu_tanh", "sinc")
# One unit of 1 + tanh or 1 + erf, where these are near to -1, is many of the result.
NEAR_MINUS_ONE = ("gelu", "gelu_tanh")
THREE_UNITS = ("erfc",)  # where eager's is within one and a half
# In f64, where both are off by up to two units: values of 200 bits, and units that are allowed.
EXACT: dict[str, tuple[Callable[[Any], Any], int]] = {
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), 2),
    "silu": (lambda x: x / (1 + mpmath.exp(-x)), 3),
}
UNARY_COUNT, BINARY_COUNT = (20_000, 200) if IS_WHOLE else (1_000, 30)


def _some(functions: dict[str, Function], every: int) -> dict[str, Function]:
    """One of so many where not everything is tried."""
    chosen = [*functions] if IS_WHOLE else [*functions][::every]
    return {name: functions[name] for name in chosen}


def _check(functions: dict[str, Function], operands: Sequence[Tensor]) -> None:
    chosen = list(functions)
    for start in range(0, len(chosen), TOGETHER):
        names = chosen[start : start + TOGETHER]
        compiled, _ = watched(lambda *xs, names=names: [functions[name](*xs) for name in names])
        for name, result in zip(names, compiled(*operands)):
            _compare(name, functions[name], operands, result)


def _gradients(functions: Sequence[Function], x: Tensor, call: Callable[..., Any]) -> list[Tensor]:
    """Of each function by an operand of its own."""
    operands = [x.detach().requires_grad_() for _ in functions]
    results = call(*operands)
    return list(torch.autograd.grad(results, operands, [torch.ones_like(r) for r in results]))


def _compare(name: str, function: Function, operands: Sequence[Tensor], result: Tensor) -> None:
    apart = [elementwise.scalar_loops(x) for x in operands]
    references = [function(*operands), function(*apart).contiguous()]
    assert result.dtype == references[0].dtype, name
    exact = function(*(x.double() for x in operands)).double()
    far = elementwise.far_from(result, references, exact)
    if name in NEAR_MINUS_ONE:
        unit = operands[0].double().abs() * (torch.finfo(result.dtype).eps / 2)
        far &= ~((result.double() - exact).abs() <= unit)
    if name in THREE_UNITS:
        far &= ~(elementwise.error(result, exact) <= 3)
    if name in EXACT and result.dtype is F64:
        for place in far.nonzero().flatten().tolist():
            far[place] = not _is_exact(name, operands[0][place].item(), result[place].item())
    if far.any():
        at = int(far.nonzero()[0])
        seen = [x[at].item() for x in (*operands, result, *references, exact)]
        raise AssertionError(f"{name}: {int(far.sum())} of {len(far)}, the first {seen}")


def _is_exact(name: str, x: float, result: float) -> bool:
    function, units = EXACT[name]
    with mpmath.workprec(200):
        return bool(abs(function(mpmath.mpf(x)) - result) <= units * math.ulp(result))


@pytest.mark.parametrize("dtype", some([F32, F16], [BF16, F64]), ids=str)
def test_unary(dtype: torch.dtype) -> None:
    functions = elementwise.UNARY if dtype is F32 else _some(elementwise.UNARY, 2)
    if dtype is F64:
        functions = {k: f for k, f in functions.items() if k not in CANCELLING}
    _check(functions, [elementwise.unary_grid(dtype, UNARY_COUNT)])


@pytest.mark.parametrize("dtype", some([F32, F16], [BF16, F64]), ids=str)
def test_binary(dtype: torch.dtype) -> None:
    functions = elementwise.BINARY
    if dtype is F64:
        functions = {k: f for k, f in functions.items() if k not in CANCELLING}
    _check(functions, elementwise.binary_grid(dtype, BINARY_COUNT))


def test_gradients_at_nan() -> None:
    """Of what is linear in pieces, as eager's kernels compare."""
    functions: list[Function] = [
        *(F.elu, F.celu, F.selu, F.hardswish, F.hardtanh, F.relu6, F.relu, F.hardsigmoid),
        lambda x: F.threshold(x, 0.1, 20.0),
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
        lambda x: F.hardtanh(x, -0.7, 0.7),
    ]

    def program(*xs: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(functions, xs)]

    compiled = watched(program)[0]
    for dtype in some([F32, BF16], [F16]):
        bounds = torch.tensor([0.1, 0.7], dtype=dtype)
        edges = [torch.nextafter(bounds, 0 * bounds + end) for end in (-9, 9)]
        x = torch.cat([elementwise.special(dtype), bounds, -bounds, *edges])
        loops = elementwise.vector_loops(x), elementwise.scalar_loops(x)
        references = [_gradients(functions, operand, program) for operand in loops]
        gradients = _gradients(functions, x, compiled)
        for number, (gradient, *eager) in enumerate(zip(gradients, *references, strict=True)):
            eager = [expected[: len(x)] for expected in eager]
            differ = elementwise.far_from(gradient, eager, None)
            assert not differ.any(), (number, x[differ], gradient[differ], eager)


@pytest.mark.parametrize("dtype", some([F32], [F16, BF16, F64]), ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    x = elementwise.unary_grid(dtype, UNARY_COUNT)
    functions = {
        name: function
        for name, function in _some(elementwise.UNARY, 3).items()
        if name != "sinc" and _is_differentiable(function, x)
        if dtype is not F64 or name != "gelu_tanh"  # eager's has squares that are infinite
    }
    chosen = list(functions.values())

    def program(*xs: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(chosen, xs)]

    gradients = _gradients(chosen, x, watched(program)[0])
    exact = _gradients(chosen, x.double(), program)
    apart = elementwise.scalar_loops(x)
    references = [_gradients(chosen, operand, program) for operand in (x, apart)]
    for name, gradient, *others, truth in zip(functions, gradients, *references, exact):
        steep = elementwise.steep(gradient, others, truth)
        if name == "silu":  # a unit of a sigmoid that is near to 1
            unit = x.double().abs() * torch.finfo(dtype).eps
            steep &= ~((gradient.double() - truth).abs() <= unit)
        if steep.any():
            at = int(steep.nonzero()[0])
            seen = [y[at].item() for y in (x, gradient, *others, truth)]
            raise AssertionError(f"{name}: {int(steep.sum())} of {len(x)}, the first {seen}")


def _is_differentiable(function: Function, x: Tensor) -> bool:
    try:
        function(x[:1].detach().requires_grad_()).sum().backward()
    except RuntimeError:
        return False
    return True
