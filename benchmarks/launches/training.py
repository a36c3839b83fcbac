"""Forward and backward passes: sums over rows beside sums over columns."""

from __future__ import annotations

import torch
from torch import Tensor, nn, ones, randn, zeros
from torch.nn import functional as F

from benchmarks.block import HALF, Block
from benchmarks.counting import Made
from benchmarks.launches.norms import batch_norm_arguments, batch_norm_relu
from benchmarks.launches.program import Stitchable, learned


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def dropout_residual_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return layer_norm(F.dropout(x, 0.1) + residual, weight, bias)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def gated_norm(x: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
    return F.silu(gate) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight)


def embedded(
    words: Tensor, vocabulary: Tensor, places: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return layer_norm(F.embedding(words, vocabulary) + places, weight, bias)


def _embedded() -> Made:
    words = zeros(16, 512, dtype=torch.int64)
    tables = (randn(30_000, 768), randn(512, 768))
    return learned((embedded, [words, *tables, ones(768), zeros(768)]))


def _perceptron() -> Made:
    layers = (nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), nn.LayerNorm(1024))
    return nn.Sequential(*layers), [randn(8192, 1024, requires_grad=True)]


def _block() -> Made:
    x = randn(8, 512, 512, dtype=HALF, requires_grad=True)
    return Block(512, 8, dropout=0.0), [x]


def _normed(rows: int, width: int, tensors: int) -> list[Tensor]:
    return [*(randn(rows, width) for _ in range(tensors)), ones(width), zeros(width)]


TRAINING = (
    Stitchable(
        "layer norm",
        lambda: learned((layer_norm, _normed(16384, 1024, 1))),
        backward=True,
        ideal=2,
        why="Gradients of weight and bias are sums over columns, that of the input over rows.",
    ),
    Stitchable(
        "cross entropy",
        lambda: learned((F.cross_entropy, [randn(4096, 8192), zeros(4096, dtype=torch.int64)])),
        backward=True,
        ideal=2,
        why="The mean over all rows at the end; logits are read once more on the way back.",
    ),
    Stitchable(
        "batch norm + ReLU",
        lambda: learned((batch_norm_relu, batch_norm_arguments(64, 256, 28)), 1, 2, 3),
        backward=True,
        ideal=2,
        why="Strided sums before any element in both directions.",
    ),
    Stitchable(
        "dropout + residual + layer norm",
        lambda: learned((dropout_residual_norm, _normed(8192, 1024, 2))),
        backward=True,
        ideal=2,
        why="Random numbers are wanted again on the way back.",
    ),
    Stitchable(
        "bias + GELU",
        lambda: learned((bias_gelu, [randn(8192, 4096), randn(4096)])),
        backward=True,
        ideal=2,
        why="The gradient of the bias sums up columns of a gradient that is written as well.",
    ),
    Stitchable(
        "gate * RMS norm",
        lambda: learned((gated_norm, [randn(8192, 2048), randn(2048), randn(8192, 2048)])),
        backward=True,
        ideal=2,
        why="Sums of rows and of columns of the same gradients, and two results.",
    ),
    Stitchable(
        "linear + GELU + linear + layer norm",
        _perceptron,
        backward=True,
        ideal=8,
        why="Six products; gradients of biases are column sums of what the next product reads.",
        moves=False,
    ),
    Stitchable(
        "transformer block, bf16",
        _block,
        backward=True,
        ideal=20,
        why="Twelve products and attention, with norms, biases and gradients in between.",
        moves=False,
    ),
    Stitchable(
        "embeddings + layer norm",
        _embedded,
        backward=True,
        ideal=2,
        why="The gradient of a table is a sum over the rows that share a word.",
        moves=False,
    ),
)
