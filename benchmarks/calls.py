"""A case as calls that can be timed or compared: its arguments on a device and in a type, one call
forward, one forward and backward, by any backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from benchmarks.cases import Arguments, Case, bytes_of, tensors
from benchmarks.timing import Function


def bytes_moved(case: Case, arguments: Arguments, direction: str) -> int:
    """Each pass reads its arguments once and writes its results once."""
    if case.moves is not None:
        return case.moves(arguments)
    with torch.no_grad():
        results = bytes_of(case.function(*arguments))
    forward = bytes_of(arguments) + results
    if direction == "forward":
        return forward
    return forward + bytes_of(arguments) + results + bytes_of(differentiable(case, arguments))


def compiled(function: Function, backend: str | Callable[..., Any], **more: Any) -> Function:
    """The function by this backend; `more` goes to `torch.compile`. Dynamo keeps what it compiled
    with the code object, so each backend gets its own."""
    if backend == "eager":
        return function
    assert isinstance(function, FunctionType)
    name = backend if isinstance(backend, str) else backend.__name__
    code = function.__code__.replace(co_name=f"{function.__name__}_{name}")
    defaults = function.__defaults__
    copy = FunctionType(code, function.__globals__, None, defaults, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(copy, backend=backend, dynamic=False, **more)


def differentiable(case: Case, arguments: Arguments) -> list[Tensor]:
    return [
        value
        for position, value in enumerate(arguments)
        if position not in case.constant and isinstance(value, Tensor) and value.is_floating_point()
    ]


def forward(function: Function) -> Function:
    def call(arguments: Arguments, *_: object) -> object:
        with torch.no_grad():
            return function(*arguments)

    return call


def both(function: Function) -> Function:
    def call(arguments: Arguments, inputs: list[Tensor], gradients: list[Tensor]) -> object:
        return torch.autograd.grad(tensors(function(*arguments)), inputs, gradients)

    return call


WRAPPERS: Mapping[str, Callable[[Function], Function]] = {"forward": forward, "both": both}


def prepared(
    case: Case,
    rows: int,
    direction: str,
    *,
    width: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, ...]:
    """What the wrapped function of `direction` takes."""
    with torch.device(device):
        arguments = placed(case.arguments(rows, width), device, dtype)
    if direction == "forward":
        return (arguments,)
    inputs = [tensor.requires_grad_() for tensor in differentiable(case, arguments)]
    with torch.no_grad():
        results = tensors(case.function(*arguments))
    return arguments, inputs, [torch.randn_like(result) for result in results]


def placed(arguments: Arguments, device: str, dtype: torch.dtype) -> Arguments:
    """Floating-point tensors in `dtype`, but for single numbers, which count."""

    def place(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        counts = value.dim() == 0 or not value.is_floating_point()
        return value.to(device, value.dtype if counts else dtype)

    moved: Arguments = tree_map(place, arguments)
    return moved
