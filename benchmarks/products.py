"""Workloads around products of matrices, for GPUs: what stays on chip between a product and what
becomes of it. Half precision, as such products run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cases import Arguments, Case

HEADS, DEPTH = 12, 64


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) * DEPTH**-0.5 + mask
    return torch.softmax(scores, -1) @ value


def linear_gelu_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias)) + residual


def linear_norm(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    hidden = F.linear(x, weight, bias) + residual
    return F.layer_norm(hidden, hidden.shape[-1:])


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def linear_relu_sums(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """With sums over columns, as the gradient of a bias is."""
    result = F.relu(F.linear(x, weight, bias))
    return result, result.sum(0)


def _half(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def _attention(rows: int, width: int) -> Arguments:
    shape = (max(1, rows // width), HEADS, width, DEPTH)
    return (*(_half(*shape) for _ in range(3)), _half(shape[0], 1, width, width))


PRODUCTS = (
    Case("attention, short rows", attention, _attention, 128, (7, 77), backward=False),
    Case(
        "linear + GELU + residual",
        linear_gelu_residual,
        lambda n, w: (_half(n, w), _half(4 * w, w), _half(4 * w), _half(n, 4 * w)),
        768,
        (9, 50),
        backward=False,
    ),
    Case(
        "linear + residual + layer norm",
        linear_norm,
        lambda n, w: (_half(n, 2 * w), _half(w, 2 * w), _half(w), _half(n, w)),
        256,
        (17, 100),
        backward=False,
    ),
    Case(
        "SwiGLU",
        swiglu,
        lambda n, w: (_half(n, w), _half(w, 2 * w), _half(w, 2 * w)),
        512,
        (20, 75),
        backward=False,
    ),
    Case(
        "linear + ReLU + sums",
        linear_relu_sums,
        lambda n, w: (_half(n, w), _half(w, w), _half(w)),
        256,
        (16, 130),
        backward=False,
    ),
)
