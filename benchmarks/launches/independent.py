"""Much work of little size that has no data in common."""

from __future__ import annotations

import torch
from torch import Tensor, randn
from torch.nn import functional as F

from benchmarks.launches.program import Stitchable

NORMED = ((512, 64), (256, 128), (1024, 64), (128, 256))
LAYERS = ((512, 512), (512,), (2048, 512), (2048,), (512, 2048), (512,)) * 2


def four_norms(*tensors: Tensor) -> list[Tensor]:
    return [F.layer_norm(x, x.shape[-1:]) for x in tensors]


def gates(*tensors: Tensor) -> list[Tensor]:
    return [torch.tanh(x) * 0.5 for x in tensors]


def column_sums(*tensors: Tensor) -> list[Tensor]:
    return [x.sum(0) for x in tensors]


def clipped_momentum(
    gradients: list[Tensor], parameters: list[Tensor], momenta: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    norm = torch.stack([x.square().sum() for x in gradients]).sum().sqrt()
    scale = torch.clamp(1 / (norm + 1e-6), max=1.0)
    momenta = [0.9 * old + x * scale for old, x in zip(momenta, gradients)]
    return [old - 0.01 * step for old, step in zip(parameters, momenta)], momenta


INDEPENDENT = (
    Stitchable(
        "layer norm of 4 tensors",
        lambda: (four_norms, [randn(shape) for shape in NORMED]),
        why="Four shapes, no shared data.",
    ),
    Stitchable(
        "gates of 16 tensors",
        lambda: (gates, [randn(100 + 10 * i, 17) for i in range(16)]),
        why="Sixteen sizes, each too small to fill a GPU.",
    ),
    Stitchable(
        "column sums of 16 tensors",
        lambda: (column_sums, [randn(256, 64 + 16 * i) for i in range(16)]),
        why="Sixteen reductions of little work, as gradients of biases are.",
    ),
    Stitchable(
        "clip by norm + momentum, 12 tensors",
        lambda: (clipped_momentum, [[randn(shape) for shape in LAYERS] for _ in range(3)]),
        ideal=2,
        why="Twelve sums become one number before any of twelve updates.",
    ),
)
