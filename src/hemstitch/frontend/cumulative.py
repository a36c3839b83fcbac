"""The gradient of a cumulative product as one library call, on processors.

PyTorch computes it in one of two ways, by whether an element is zero. A trace cannot ask, takes the
one that is always right, and needs four scans instead of one. The library asks during the call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor

GRADIENT = "hemstitch::cumprod_gradient"
CALLS = (torch.cumprod, torch.Tensor.cumprod, "cumprod")

torch.library.define(GRADIENT, "(Tensor gradient, Tensor x, int dim, Tensor result) -> Tensor")


@torch.library.impl(GRADIENT, "default")
def _gradient(gradient: Tensor, x: Tensor, dim: int, result: Tensor) -> Tensor:
    whole: Tensor = torch.ops.aten.cumprod_backward.default(gradient, x, dim, result)
    return whole.contiguous()


def _fake_gradient(gradient: Tensor, x: Tensor, dim: int, result: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


torch.library.register_fake(GRADIENT, _fake_gradient)


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return x.cumprod(dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, result = ctx.saved_tensors
        ops = torch.ops.aten.cumprod_backward, torch.ops.hemstitch.cumprod_gradient
        differentiable, once = (op.default for op in ops)
        gradient_of = differentiable if torch.is_grad_enabled() else once
        return gradient_of(gradients[0], x, ctx.dim, result), None


def _product(x: Tensor, dim: int) -> Tensor:
    result: Tensor = _Product.apply(x, dim)  # type: ignore[no-untyped-call]
    return result


def multiply_along(gm: torch.fx.GraphModule) -> None:
    """In Dynamo's graph, and in those of its checkpoints and branches."""
    modules = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    calls = [n for module in modules for n in module.graph.nodes if _is_ours(n)]
    for node in calls:
        node.op, node.target = "call_function", _product
    for module in modules if calls else ():
        module.recompile()


def _is_ours(node: torch.fx.Node) -> bool:
    if node.target not in CALLS or len(node.args) + len(node.kwargs) != 2:
        return False
    x, dim = node.args[0] if node.args else None, (*node.args[1:], node.kwargs.get("dim"))[0]
    value = x.meta.get("example_value") if isinstance(x, torch.fx.Node) else None
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return False
    return value.dtype.is_floating_point and isinstance(dim, int)
