"""Checks of what a decomposition works on, as eager makes them in operations that come apart. Of
values: the op `hemstitch::checked`, which is its second operand where the first holds everywhere.
Of types: what eager refuses stays the library's, which says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hemstitch.ir.failure import Failure

CHECKED = "hemstitch::checked"

torch.library.define(CHECKED, "(Tensor condition, Tensor x, str error, str message) -> Tensor")


@torch.library.impl(CHECKED, "default")
def _checked(condition: torch.Tensor, x: torch.Tensor, error: str, message: str) -> torch.Tensor:
    if not condition.all():
        raise Failure(error, message).exception()
    return x.clone()


def _fake_checked(
    condition: torch.Tensor, x: torch.Tensor, error: str, message: str
) -> torch.Tensor:
    return torch.empty_like(x)


torch.library.register_fake(CHECKED, _fake_checked)


def bernoulli(usual: Callable[..., Any], p: torch.Tensor, *, generator: Any = None) -> Any:
    message = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    return usual(_probability(p, message), generator=generator)


def binary_cross_entropy(
    usual: Callable[..., Any],
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> Any:
    if x.dtype is not target.dtype or not x.is_floating_point():
        return NotImplemented
    x = _probability(x, "all elements of input should be between 0 and 1")
    if x.device.type == "cpu":  # elsewhere eager does not look at them
        target = _probability(target, "all elements of target should be between 0 and 1")
    return usual(x, target, weight, reduction).to(x.dtype)


def of_floats(usual: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, *how: Any) -> Any:
    is_float = torch.promote_types(x.dtype, y.dtype).is_floating_point
    return usual(x, y, *how) if is_float else NotImplemented


def with_logits(
    usual: Callable[..., Any], x: torch.Tensor, target: torch.Tensor, *how: Any, **keywords: Any
) -> Any:
    """Eager writes to a tensor of the target's type."""
    is_float = x.is_floating_point() and target.is_floating_point()
    return usual(x, target, *how, **keywords) if is_float else NotImplemented


def of_first_type(usual: Callable[..., Any], x: torch.Tensor, *how: Any) -> Any:
    return usual(x, *how).to(x.dtype) if x.is_floating_point() else NotImplemented


def _probability(x: torch.Tensor, message: str) -> torch.Tensor:
    return _call((x >= 0) & (x <= 1), x, "RuntimeError", message)


def _call(condition: torch.Tensor, x: torch.Tensor, error: str, message: str) -> torch.Tensor:
    checked: torch.Tensor = torch.ops.hemstitch.checked(condition, x, error, message)
    return checked
