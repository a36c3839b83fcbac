"""Checks of what a decomposition works on, as eager makes them in operations that come apart: the
op `hemstitch::checked`, which is its second operand where the first holds everywhere."""

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
    x = _probability(x, "all elements of input should be between 0 and 1")
    if x.device.type == "cpu":  # elsewhere eager does not look at them
        target = _probability(target, "all elements of target should be between 0 and 1")
    return usual(x, target, weight, reduction)


def _probability(x: torch.Tensor, message: str) -> torch.Tensor:
    return _call((x >= 0) & (x <= 1), x, "RuntimeError", message)


def _call(condition: torch.Tensor, x: torch.Tensor, error: str, message: str) -> torch.Tensor:
    checked: torch.Tensor = torch.ops.hemstitch.checked(condition, x, error, message)
    return checked
