"""What no backend of `torch.compile` can beat: the call itself, with nothing computed.

A graph compiled by `nothing` gives back, from its second call on, what the first call gave, and
zeros for gradients. So the time of such a call is that of Dynamo and autograd. With the time of a
copy of the bytes that must move it bounds what any backend could reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor


class _Stored(torch.autograd.Function):
    """Arguments: results, gradients of the tensors, then the tensors."""

    @staticmethod
    def forward(
        ctx: Any, results: Sequence[Tensor], gradients: Sequence[Tensor | None], *_: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        return (None, None, *ctx.gradients)


def nothing(gm: torch.fx.GraphModule, _: Sequence[object]) -> Callable[..., Any]:
    """A backend for `torch.compile`."""
    results: list[Any] = []
    gradients: list[Tensor | None] = []
    apply: Callable[..., Any] = _Stored.apply

    def call(*arguments: Any) -> Any:
        if not results:
            given = gm(*arguments)
            results.extend(x.detach() if isinstance(x, Tensor) else x for x in given)
            gradients.extend(
                torch.zeros_like(x) if isinstance(x, Tensor) and x.requires_grad else None
                for x in arguments
            )
            return given
        if not torch.is_grad_enabled() or not any(x is not None for x in gradients):
            return tuple(results)
        return apply(tuple(results), tuple(gradients), *arguments)

    return call
