"""What no backend of `torch.compile` can beat: a call in which the bytes move and nothing else.

A graph compiled by `copying` copies as many bytes as the workload must move, and gives back what
its first call gave, and zeros for gradients. So such a call takes what Dynamo, autograd and memory
take. It is more than the copy's time and an empty call's together: Dynamo's guards find their data
in a farther cache after a kernel has streamed through the nearer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor

Function = Callable[..., Any]


def copy_of(size: int, sets: int = 1, device: str = "cpu") -> Function:
    """A call that reads and writes `size` bytes in all, of the next of `sets` pairs of buffers. On
    a GPU by a kernel: CUDA's own copies are slower in a graph."""
    count = max(1, size // 8)  # each element is four bytes read and four written
    buffers = [torch.zeros(2, count, device=device).unbind() for _ in range(sets)]
    turn = 0

    def call(*_: object) -> Tensor:
        nonlocal turn
        turn = (turn + 1) % sets
        source, target = buffers[turn]
        return target.copy_(source) if device == "cpu" else torch.neg(source, out=target)

    return call


class _Copied(torch.autograd.Function):
    """Arguments: results, gradients of the tensors, what backward copies, then the tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        results: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        copy: Function,
        *_: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        ctx.copy = copy
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        ctx.copy()
        return (None, None, None, *ctx.gradients)


def copying(forward: Function, backward: Function) -> Callable[..., Function]:
    """A backend for `torch.compile` whose passes are these copies."""

    def limit(gm: torch.fx.GraphModule, _: Sequence[object]) -> Function:
        first: list[tuple[Any, ...]] = []
        gradients: list[Tensor | None] = []
        apply: Function = _Copied.apply

        def call(*arguments: Any) -> Any:
            if not first:
                results = gm(*arguments)
                first.append(tuple(x.detach() if isinstance(x, Tensor) else x for x in results))
                gradients.extend(
                    torch.zeros_like(x) if isinstance(x, Tensor) and x.requires_grad else None
                    for x in arguments
                )
                return results
            forward()
            if not torch.is_grad_enabled() or not any(x is not None for x in gradients):
                return first[0]
            return apply(first[0], tuple(gradients), backward, *arguments)

        return call

    return limit
