"""Reductions that read each other along other axes, or all of a tensor before any of it is used."""

from __future__ import annotations

import torch
from torch import Tensor, randn
from torch.nn import functional as F

from benchmarks.launches.program import Stitchable


def load_balance(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1).mean(0)


def norm_then_columns(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias).square().sum(0)


def centred_softmax(x: Tensor) -> Tensor:
    return torch.softmax((x - x.mean(0)) * 0.1, -1)


def sinkhorn(x: Tensor) -> Tensor:
    x = x.exp()
    for _ in range(3):
        x = x / x.sum(-1, keepdim=True)
        x = x / x.sum(0, keepdim=True)
    return x


def clipped(gradient: Tensor) -> Tensor:
    return gradient * torch.clamp(1 / (gradient.norm() + 1e-6), max=1.0)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax() / 127
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8), scale


def rms_quantised(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    blocks = y.view(y.shape[0], -1, 128)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.round(blocks / scale).to(torch.int8), scale


def clip_loss(logits: Tensor) -> Tensor:
    pairs = torch.arange(logits.shape[0], device=logits.device)
    return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.t(), pairs)) / 2


def three_sums(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(0), x.sum(1), x.sum()


def pooled_similarity(x: Tensor) -> Tensor:
    pooled = F.normalize(x.mean(1), dim=-1)
    return (F.normalize(x, dim=-1) * pooled[:, None]).sum(-1)


REDUCTIONS = (
    Stitchable(
        "softmax of rows + mean of columns",
        lambda: (load_balance, [randn(32768, 64)]),
        why="The mean goes along the other axis than the softmax (load balance of experts).",
    ),
    Stitchable(
        "layer norm + column sums of squares",
        lambda: (norm_then_columns, [randn(8192, 1024), randn(1024), randn(1024)]),
        why="A reduction of columns reads what a reduction of rows has normalised.",
    ),
    Stitchable(
        "centre columns, scale + softmax",
        lambda: (centred_softmax, [randn(8192, 512)]),
        why="No row can begin before all columns are summed up.",
    ),
    Stitchable(
        "Sinkhorn, three rounds",
        lambda: (sinkhorn, [randn(2048, 2048)]),
        why="Rows and columns in turns, six times, each needs all of the one before.",
    ),
    Stitchable(
        "clip one gradient by its norm",
        lambda: (clipped, [randn(4096, 4096)]),
        why="The norm is of the whole tensor, and then all of the tensor is read again.",
    ),
    Stitchable(
        "quantise a tensor",
        lambda: (quantised, [randn(4096, 4096)]),
        why="The scale is the maximum of the whole tensor.",
    ),
    Stitchable(
        "RMS norm + quantise blocks of 128",
        lambda: (rms_quantised, [randn(8192, 4096), randn(4096)]),
        why="Two reductions of different widths over the same row.",
    ),
    Stitchable(
        "CLIP loss",
        lambda: (clip_loss, [randn(4096, 4096)]),
        why="Cross entropy of the same logits along both axes, and the diagonal.",
    ),
    Stitchable(
        "sums of rows, columns, all",
        lambda: (three_sums, [randn(8192, 1024)]),
        why="Three reductions of one tensor with nothing else in common.",
    ),
    Stitchable(
        "pool + similarity",
        lambda: (pooled_similarity, [randn(32, 512, 768)]),
        why="A mean over the sequence, normalised, is multiplied with each row that it is of.",
    ),
)
