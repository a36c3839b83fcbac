"""Gradients of products, cumulative ones and such of a whole axis, on processors.

PyTorch computes them in one of two ways, by whether an element is zero. A trace cannot ask, takes
the one that is always right, and needs four scans instead of one, or two instead of none. The
library asks during the call. Of a product of a whole axis, zeros are counted.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx
from torch import Tensor

GRADIENT = "hemstitch::cumprod_gradient"
CALLS = (torch.cumprod, torch.Tensor.cumprod, "cumprod")
VANDERMONDE = (torch.linalg.vander,)
WHOLE = (torch.prod, torch.Tensor.prod, "prod")

torch.library.define(GRADIENT, "(Tensor gradient, Tensor x, int dim, Tensor result) -> Tensor")


@torch.library.impl(GRADIENT, "default")
def _gradient(gradient: Tensor, x: Tensor, dim: int, result: Tensor) -> Tensor:
    whole: Tensor = torch.ops.aten.cumprod_backward.default(gradient, x, dim, result)
    # Along an axis of one element PyTorch gives the operand itself, whose memory is used again.
    return whole.clone() if whole is gradient else whole.contiguous()


def _fake_gradient(gradient: Tensor, x: Tensor, dim: int, result: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


torch.library.register_fake(GRADIENT, _fake_gradient)


class _CumulativeProduct(torch.autograd.Function):
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
    result: Tensor = _CumulativeProduct.apply(x, dim)  # type: ignore[no-untyped-call]
    return result


def _vandermonde(x: Tensor, *, N: int | None = None) -> Tensor:
    """As `torch.linalg.vander`, whose cumulative product no graph of Dynamo's shows."""
    count = x.shape[-1] if N is None else N
    if count < 2:
        refused: Tensor = torch.linalg.vander(x, N=N)  # it raises
        return refused
    powers = _product(x.unsqueeze(-1).expand(*x.shape, count - 1), -1)
    return torch.cat([x.new_ones(x.shape).unsqueeze(-1), powers], -1)


class _WholeProduct(torch.autograd.Function):
    """As `torch.prod`, of at least one element. No view of what it gives stands behind it: nobody
    could write to that."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
        return x.prod() if dim is None else x.prod(dim, keepdim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.dim, ctx.keepdim = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (x,) = gradients, ctx.saved_tensors
        axes = tuple(range(x.dim())) if ctx.dim is None else (ctx.dim,)
        if ctx.dim is None:
            gradient = gradient.view((1,) * x.dim())
        elif not ctx.keepdim:
            gradient = gradient.unsqueeze(ctx.dim)
        others = _others(x, axes) if torch.is_grad_enabled() else _rest(x, axes)
        return gradient * others, None, None


def _multiplied(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    if len(axes) == 1:
        return x.prod(*axes, keepdim=True)
    return x.prod().view((1,) * x.dim())


def _rest(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """For each element the product of all others. Zeros, infinities and NaN count as their signs in
    the product of all; where others are such, they decide what it is. A plain element divides it:
    its root, which is then multiplied with once more, since the product of all may be too large or
    too small for the type where that of the others is not."""
    kinds = {0.0: x == 0, math.inf: x.isinf(), math.nan: x.isnan()}
    is_plain = ~(kinds[0.0] | kinds[math.inf] | kinds[math.nan])
    sign = torch.copysign(torch.ones_like(x), x)
    product = _multiplied(torch.where(is_plain, x, sign).double(), axes)
    counts = {f: kind.sum(axes, keepdim=True, dtype=torch.int32) for f, kind in kinds.items()}
    specials = counts[0.0] + counts[math.inf] + counts[math.nan]
    unit = torch.copysign(torch.ones_like(product), product)
    whole, root = unit, product.abs().sqrt()
    dtype = torch.promote_types(x.dtype, torch.float32)
    rest = torch.where(specials > 1, unit, product).to(dtype) * sign
    for factor, kind in kinds.items():
        whole = torch.where(counts[factor] > 0, whole * factor, whole)
        rest = torch.where(counts[factor] > kind.int(), rest * factor, rest)
    first = torch.where(specials > 0, whole, root).to(dtype)
    second = torch.where(specials > 0, 1.0, torch.copysign(root, product)).to(dtype)
    return torch.where(is_plain, first / x * second, rest).to(x.dtype)


def _others(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The same, so that it has a gradient where elements are zero."""
    if len(axes) > 1:
        return _others(x.flatten(), (0,)).view(x.shape)
    (axis,) = axes
    ones, count = torch.ones_like(x.narrow(axis, 0, 1)), x.shape[axis] - 1
    before = torch.cat([ones, x.narrow(axis, 0, count)], axis).cumprod(axis)
    behind = torch.cat([ones, x.narrow(axis, 1, count).flip(axis)], axis).cumprod(axis).flip(axis)
    return before * behind


def _whole_product(
    input: Tensor,  # names as torch.prod has them
    dim: int | None = None,
    keepdim: bool = False,
) -> Tensor:
    if input.dim() == 0 or input.numel() == 0:
        return input.prod() if dim is None else input.prod(dim, keepdim)
    result: Tensor = _WholeProduct.apply(input, dim, keepdim)  # type: ignore[no-untyped-call]
    return result


def multiply_along(gm: torch.fx.GraphModule) -> None:
    """In Dynamo's graph, and in those of its checkpoints and branches."""
    modules = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    calls = {node: _product for node in nodes if _is_ours(node)}
    calls |= {node: _vandermonde for node in nodes if _is_vandermonde(node)}
    calls |= {node: _whole_product for node in nodes if _is_whole(node)}
    for node, function in calls.items():
        node.op, node.target = "call_function", function
    for module in modules if calls else ():
        module.recompile()


def _is_ours(node: torch.fx.Node) -> bool:
    if node.target not in CALLS or len(node.args) + len(node.kwargs) != 2:
        return False
    dim = (*node.args[1:], node.kwargs.get("dim"))[0]
    return _multiplies(node) is not None and isinstance(dim, int)


def _is_vandermonde(node: torch.fx.Node) -> bool:
    value = _multiplies(node) if node.target in VANDERMONDE else None
    return value is not None and value.dim() > 0


def _is_whole(node: torch.fx.Node) -> bool:
    if node.target not in WHOLE or not {"dim", "keepdim"} >= {*node.kwargs}:
        return False
    value = _multiplies(node)
    return value is not None and value.requires_grad


def _multiplies(node: torch.fx.Node) -> Tensor | None:
    """Floats on a processor."""
    x = node.args[0] if node.args else None
    value = x.meta.get("example_value") if isinstance(x, torch.fx.Node) else None
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return None
    return value if value.dtype.is_floating_point else None
