"""What stands around products of matrices and a convolution, in f32, as PyTorch multiplies it
unless told otherwise. An ideal of one means: the product and all around it."""

from __future__ import annotations

import torch
from torch import Tensor, ones, randn, zeros
from torch.nn import functional as F

from benchmarks.launches.program import Stitchable


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def linear_norm(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    y = F.linear(x, weight, bias) + residual
    return F.layer_norm(y, y.shape[-1:])


def rms_linear(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale, weight)


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def linear_quantised(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, weight)
    scale = y.abs().amax(-1, keepdim=True) / 127
    return torch.round(y / scale).to(torch.int8), scale


def heads(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> list[Tensor]:
    projections = (F.linear(x, weight, bias) for weight, bias in zip(weights, biases))
    return [y.view(*x.shape[:2], 16, 64).transpose(1, 2).contiguous() for y in projections]


def _heads() -> list[object]:
    weights = [randn(1024, 1024) for _ in range(3)]
    return [randn(8, 512, 1024), weights, [randn(1024) for _ in range(3)]]


def capped_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) * 0.125
    return torch.softmax(50 * torch.tanh(scores / 50) + bias, -1) @ value


def squared_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = F.relu(query @ key.transpose(-1, -2) * 0.125).square()
    return (scores / (scores.sum(-1, keepdim=True) + 1e-6)) @ value


def _heads_of_three() -> list[Tensor]:
    return [randn(2, 16, 1024, 64) for _ in range(3)]


def language_loss(x: Tensor, weight: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight), words)


def convolved(
    x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, residual: Tensor
) -> Tensor:
    y = F.batch_norm(F.conv2d(x, weight, padding=1), mean, variance, scale, torch.zeros_like(mean))
    return F.relu(y + residual)


def _convolved() -> list[Tensor]:
    image = randn(16, 64, 56, 56)
    statistics = (zeros(64), ones(64), ones(64))
    return [image, randn(64, 64, 3, 3), *statistics, randn(16, 64, 56, 56)]


def recurrent(
    inputs: Tensor, hidden: Tensor, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor]
) -> Tensor:
    """A GRU cell by hand; that of the library is no one graph."""
    states = []
    for x in inputs:
        of_x, of_hidden = (
            F.linear(value, weight, bias).chunk(3, -1)
            for value, weight, bias in zip((x, hidden), weights, biases)
        )
        reset, update = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_hidden[:2]))
        new = torch.tanh(of_x[2] + reset * of_hidden[2])
        hidden = (1 - update) * new + update * hidden
        states.append(hidden)
    return torch.stack(states)


def _recurrent() -> list[object]:
    weights, biases = (randn(768, 256), randn(768, 256)), (randn(768), randn(768))
    return [randn(20, 64, 256), randn(64, 256), weights, biases]


PRODUCTS = (
    Stitchable(
        "linear + GELU",
        lambda: (linear_gelu, [randn(4096, 1024), randn(4096, 1024), randn(4096)]),
        why="The bias and the activation are the product's last step.",
        moves=False,
    ),
    Stitchable(
        "linear + residual + layer norm",
        lambda: (linear_norm, [randn(8192, 256), randn(256, 256), randn(256), randn(8192, 256)]),
        why="A reduction over all columns of a product.",
        moves=False,
    ),
    Stitchable(
        "RMS norm + linear",
        lambda: (rms_linear, [randn(4096, 1024), randn(1024), randn(1024, 1024)]),
        why="A reduction before a product; its result may as well scale what comes out.",
        moves=False,
    ),
    Stitchable(
        "SwiGLU",
        lambda: (swiglu, [randn(4096, 1024), randn(2816, 1024), randn(2816, 1024)]),
        why="Two products of one input meet element by element.",
        moves=False,
    ),
    Stitchable(
        "linear + quantise rows",
        lambda: (linear_quantised, [randn(8192, 512), randn(512, 512)]),
        why="The maximum of each row of a product scales the row.",
        moves=False,
    ),
    Stitchable(
        "queries, keys, values",
        lambda: (heads, _heads()),
        ideal=2,
        why="Three products of one input, each written as heads: transposed.",
        moves=False,
    ),
    Stitchable(
        "attention, capped and biased",
        lambda: (capped_attention, [*_heads_of_three(), randn(16, 1024, 1024)]),
        why="Two products with a softmax in between that no library's attention knows.",
        moves=False,
    ),
    Stitchable(
        "attention by squares of ReLU",
        lambda: (squared_attention, _heads_of_three()),
        why="Attention without an exponential.",
        moves=False,
    ),
    Stitchable(
        "linear to a vocabulary + cross entropy",
        lambda: (
            language_loss,
            [randn(2048, 512), randn(32000, 512), zeros(2048, dtype=torch.int64)],
        ),
        why="Logits of 32,000 words a row, of which one number is wanted.",
        moves=False,
    ),
    Stitchable(
        "convolution + batch norm + ReLU + residual",
        lambda: (convolved, _convolved()),
        ideal=2,
        why="A convolution is a library call, and may want another layout.",
        moves=False,
    ),
    Stitchable(
        "GRU cell, 20 steps",
        lambda: (recurrent, _recurrent()),
        ideal=21,
        why="A product and gates a step, which wait for each other; one product for all inputs.",
        moves=False,
    ),
)
