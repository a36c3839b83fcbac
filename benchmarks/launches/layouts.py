"""Transposed, joined, pooled and scanned: elements are read in another order than written."""

from __future__ import annotations

import torch
from torch import Tensor, randn
from torch.nn import functional as F

from benchmarks.launches.program import Stitchable


def transposed_softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x + y.t(), -1)


def norm_transposed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], weight, bias)
    return F.gelu(y.permute(0, 2, 1).contiguous())


def channels_first_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As ConvNeXt spells it."""
    centred = x - x.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    scaled = centred / torch.sqrt(variance + 1e-6)
    return F.gelu(scaled * weight[:, None, None] + bias[:, None, None])


def rotated_heads(
    query: Tensor, key: Tensor, weights: tuple[Tensor, Tensor], cosine: Tensor, sine: Tensor
) -> list[Tensor]:
    results = []
    for x, weight in zip((query, key), weights):
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
        left, right = x.chunk(2, -1)
        parts = (left * cosine - right * sine, right * cosine + left * sine)
        results.append(torch.cat(parts, -1).transpose(1, 2).contiguous())
    return results


def _rotated_heads() -> list[object]:
    length, head = 2048, 128
    heads = [randn(2, length, count, head) for count in (16, 8)]
    angles = [randn(length, 1, head // 2) for _ in range(2)]
    return [*heads, (randn(head), randn(head)), *angles]


def joined_norms(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([F.layer_norm(operand, operand.shape[-1:]) for operand in (x, y)], -1).relu()


def cumulative(x: Tensor) -> Tensor:
    sums = torch.softmax(x, -1).cumsum(-1)
    return sums / sums[:, -1:]


def routed(scores: Tensor) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(scores, -1).topk(2, -1)
    return weights / weights.sum(-1, keepdim=True), experts


def pooled_norm(x: Tensor) -> Tensor:
    pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
    return F.gelu(F.layer_norm(pooled, pooled.shape[-1:]))


def excited(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def sines(x: Tensor) -> list[Tensor]:
    return [torch.sin(x * (i + 1)) for i in range(100)]


LAYOUTS = (
    Stitchable(
        "x + y.t() + softmax",
        lambda: (transposed_softmax, [randn(2048, 2048), randn(2048, 2048)]),
        why="The two operands of a row lie across each other in memory.",
    ),
    Stitchable(
        "layer norm + transpose + GELU",
        lambda: (norm_transposed, [randn(32, 1024, 256), randn(256), randn(256)]),
        why="Rows are normalised and columns are written.",
    ),
    Stitchable(
        "layer norm, channels first + GELU",
        lambda: (channels_first_norm, [randn(16, 192, 56, 56), randn(192), randn(192)]),
        why="The reduced axis is strided, and small beside what lies within it.",
    ),
    Stitchable(
        "RMS norm + rotary, queries and keys",
        lambda: (rotated_heads, _rotated_heads()),
        why="Halves of a row trade places, and the result is written transposed, twice.",
    ),
    Stitchable(
        "two layer norms + cat + ReLU",
        lambda: (joined_norms, [randn(4096, 768), randn(4096, 256)]),
        why="Rows of two widths are written into one.",
    ),
    Stitchable(
        "softmax + cumulative sum, normalised",
        lambda: (cumulative, [randn(4096, 1024)]),
        why="A scan, and its last element divides all the others.",
    ),
    Stitchable(
        "top two of a softmax, normalised",
        lambda: (routed, [randn(16384, 64)]),
        why="Places of the greatest elements of a row (routing to experts).",
    ),
    Stitchable(
        "average pool + layer norm + GELU",
        lambda: (pooled_norm, [randn(16, 128, 64, 64)]),
        why="Windows of an image, then a reduction of what lies a whole image apart.",
    ),
    Stitchable(
        "squeeze and excite",
        lambda: (excited, [randn(32, 256, 28, 28)]),
        why="The mean of a channel scales all of it.",
    ),
    Stitchable(
        "100 results of one tensor",
        lambda: (sines, [randn(65536)]),
        why="One kernel has to write a hundred tensors.",
    ),
)
