"""Normalisations over large or strided extents."""

from __future__ import annotations

import torch
from torch import Tensor, ones, randn, zeros
from torch.nn import functional as F

from benchmarks.launches.program import Stitchable


def batch_norm_relu(
    x: Tensor, mean: Tensor, variance: Tensor, batches: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """As the module in training, which counts its batches."""
    batches.add_(1)
    return F.relu(F.batch_norm(x, mean, variance, weight, bias, training=True))


def batch_norm_arguments(batch: int, channels: int, side: int) -> list[Tensor]:
    counted = zeros((), dtype=torch.int64)
    statistics = (zeros(channels), ones(channels), counted, ones(channels), zeros(channels))
    return [randn(batch, channels, side, side), *statistics]


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


def instance_norm_residual(x: Tensor, residual: Tensor) -> Tensor:
    return F.leaky_relu(F.instance_norm(x), 0.2) + residual


def attention_pool(scores: Tensor, values: Tensor) -> Tensor:
    return (torch.softmax(scores, 0)[..., None] * values).sum(0)


def vocabulary_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(logits * 0.5 + mask, -1)


def two_norms(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.layer_norm(x + residual, x.shape[-1:], weight, bias)
    return F.layer_norm(F.gelu(y) + x, x.shape[-1:], weight, bias)


NORMS = (
    Stitchable(
        "batch norm + ReLU, training",
        lambda: (batch_norm_relu, batch_norm_arguments(64, 256, 28)),
        why="Strided statistics before any element, and the running ones beside them.",
    ),
    Stitchable(
        "group norm + SiLU",
        lambda: (group_norm_silu, [randn(16, 256, 64, 64), randn(256), randn(256)]),
        why="512 groups of 32,768 elements: few and long rows.",
    ),
    Stitchable(
        "instance norm + leaky ReLU + residual",
        lambda: (instance_norm_residual, [randn(8, 64, 128, 128), randn(8, 64, 128, 128)]),
        why="512 rows of 16,384 elements.",
    ),
    Stitchable(
        "softmax along the first axis + weighted sum",
        lambda: (attention_pool, [randn(512, 64), randn(512, 64, 128)]),
        why="Both reductions go along the outermost axis, and the second has one axis more.",
    ),
    Stitchable(
        "scale + mask + softmax of a vocabulary",
        lambda: (vocabulary_softmax, [randn(4096, 32768), randn(32768)]),
        why="Rows of 32,768: three loops over what no longer fits into registers.",
    ),
    Stitchable(
        "layer norm + GELU + layer norm",
        lambda: (
            two_norms,
            [randn(4096, 8192), randn(4096, 8192), randn(8192), randn(8192)],
        ),
        why="Four reductions of one row of 8,192 in a chain.",
    ),
)
