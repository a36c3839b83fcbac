"""The memory-intensive workloads that `benchmarks.cpu` and `benchmarks.gpu` run: each a function
and its arguments at a given number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adamw import adamw as adamw_update
from torch.utils._pytree import tree_iter

Arguments = tuple[Any, ...]  # tensors, and lists of tensors


@dataclass(frozen=True, slots=True)
class Case:
    """`make(rows, width)` gives arguments that grow in proportion to `rows`; `rows` is fixed where
    the shape is the point of the case. `width` is measured, `odd` are others that must be right,
    the least first. `backward`: also run together with its backward pass, with gradients for all
    float arguments but those at the positions `constant`.
    `moves`: bytes that one forward call must move, where that is not arguments plus results.
    `exact`: the same without chance, where `function` draws random numbers."""

    name: str
    function: Callable[..., Any]
    make: Callable[[int, int], Arguments]
    width: int
    odd: tuple[int, ...]
    rows: int | None = None
    backward: bool = True
    constant: tuple[int, ...] = ()
    moves: Callable[[Arguments], int] | None = None
    exact: Callable[..., Any] | None = None

    def arguments(self, rows: int, width: int | None = None) -> Arguments:
        return self.make(rows, self.width if width is None else width)


def tensors(values: object) -> list[Tensor]:
    return [value for value in tree_iter(values) if isinstance(value, Tensor)]


def bytes_of(values: object) -> int:
    """Of the memory behind the tensors: a broadcast one counts once."""
    return sum(
        min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
        for tensor in tensors(values)
    )


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape)


def scaled_masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores * 0.125 + mask, -1)


def _attention_scores(rows: int, width: int) -> Arguments:
    blocked = torch.rand(rows, 1, 1, width) < 0.1
    return _normal(rows, 12, width, width), torch.zeros(blocked.shape).masked_fill(blocked, -1e4)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def bias_gelu_dropout_residual_norm(
    x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor
) -> Tensor:
    hidden = F.dropout(F.gelu(x + bias), 0.1, True) + residual
    return F.layer_norm(hidden, hidden.shape[-1:], weight, shift)


def bias_gelu_residual_norm(
    x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor
) -> Tensor:
    hidden = F.gelu(x + bias) + residual
    return F.layer_norm(hidden, hidden.shape[-1:], weight, shift)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def rms_norm_residual_rotary(
    x: Tensor, residual: Tensor, weight: Tensor, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor]:
    hidden = x + residual
    scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
    heads = hidden * scale * weight
    heads = heads.view(*heads.shape[:-1], -1, cosine.shape[-1]).transpose(1, 2)
    left, right = heads.chunk(2, -1)
    return hidden, heads * cosine + torch.cat((-right, left), -1) * sine


def _rotary(rows: int, width: int) -> Arguments:
    """Eight heads, a quarter of the width in sequence."""
    head, length = width // 8, width // 4
    angles = torch.arange(float(length))[:, None] / 1e4 ** (torch.arange(0, head, 2) / head)
    angles = torch.cat((angles, angles), -1)
    shape = (rows, length, width)
    return _normal(*shape), _normal(*shape), _normal(width), angles.cos(), angles.sin()


def batch_norm_relu(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return F.relu(F.batch_norm(x, mean, variance, weight, bias, training=True))


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, candidate, leave = gates.chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


def adamw(
    parameters: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
    *,
    foreach: bool | None = None,
    capturable: bool = False,
) -> None:
    """One update. `capturable`: the step counters are on the GPU too, where the rest is."""
    adamw_update(
        *(parameters, gradients, first, second, [], steps),
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=1e-3,
        weight_decay=0.01,
        eps=1e-8,
        maximize=False,
        foreach=foreach,
        capturable=capturable or parameters[0].is_cuda,
    )


def _optimizer_state(rows: int, width: int) -> Arguments:
    shapes = [
        (rows, width),
        (width, rows),
        (rows,),
        (width,),
        (rows, 16),
        (16, rows),
        (rows, 32),
        (8,),
    ]
    shapes = [*shapes, (4, rows, 4)]
    shapes = [shapes[index % len(shapes)] for index in range(60)]
    lists = [[torch.randn(shape) for shape in shapes] for _ in range(3)]
    steps = [torch.ones(()) for _ in shapes]
    return (*lists, [torch.rand(shape) for shape in shapes], steps)


def softmax_dropout(x: Tensor) -> Tensor:
    return F.dropout(torch.softmax(x, -1), 0.1, True)


def gated_linear_unit(x: Tensor) -> Tensor:
    return F.glu(x, -1)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


def where_mask(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(mask, x * 1.5, y)


def sums(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(1), x.sum(0), x.sum()


def pool_permute_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
    return F.layer_norm(pooled, pooled.shape[-1:], weight, bias)


def outer_product(column: Tensor, row: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(column[:, None] * row[None, :] + bias)


def chain_of_30(x: Tensor, y: Tensor) -> Tensor:
    for step in range(6):
        x = torch.sigmoid(x * 1.01 + y) - 0.1 * step
        x = torch.maximum(x, y * 0.5)
    return x


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    quantised = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
    return quantised, scale, quantised.float() * scale


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def row_sums(x: Tensor) -> Tensor:
    return x.sum(-1)


def rows_then_columns(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return torch.tanh(centred - centred.mean(0, keepdim=True))


CASES = (
    Case(
        "scale + mask + softmax",
        scaled_masked_softmax,
        _attention_scores,
        128,
        (5, 33),
        constant=(1,),
    ),
    Case(
        "layer norm",
        layer_norm,
        lambda n, w: (_normal(n, w), _normal(w), _normal(w)),
        1024,
        (33, 1000, 8200),
    ),
    Case(
        "bias + GELU + dropout + residual + layer norm",
        bias_gelu_dropout_residual_norm,
        lambda n, w: (_normal(n, w), _normal(w), _normal(n, w), _normal(w), _normal(w)),
        1024,
        (33, 1000),
        exact=bias_gelu_residual_norm,
    ),
    Case(
        "cross entropy, label smoothing",
        cross_entropy,
        lambda n, w: (_normal(n, w), torch.randint(w, (n,))),
        4096,
        (33, 9001),
    ),
    Case(
        "residual + RMS norm + rotary",
        rms_norm_residual_rotary,
        _rotary,
        512,
        (16, 48),
        constant=(3, 4),
    ),
    Case(
        "batch norm + ReLU, training",
        batch_norm_relu,
        lambda n, w: (
            *(_normal(n, 64, w, w), torch.zeros(64), torch.ones(64)),
            *(_normal(64), _normal(64)),
        ),
        28,
        (3, 13),
        constant=(1, 2),
    ),
    Case(
        "LSTM cell, pointwise",
        lstm_cell,
        lambda n, w: (_normal(n, 4 * w), _normal(n, w)),
        1024,
        (7, 333),
    ),
    Case(
        "AdamW, 60 tensors of 9 shapes",
        adamw,
        _optimizer_state,
        64,
        (7,),
        backward=False,
        moves=lambda arguments: bytes_of(arguments) * 7 // 4,  # reads 4 lists, writes 3
    ),
    Case(
        "softmax + dropout",
        softmax_dropout,
        lambda n, w: (_normal(n, w),),
        1024,
        (33, 1000),
        exact=softmax,
    ),
    Case("GLU", gated_linear_unit, lambda n, w: (_normal(n, 2 * w),), 1024, (7, 333)),
    Case(
        "group norm + SiLU",
        group_norm_silu,
        lambda n, w: (_normal(n, 64, w, w), _normal(64), _normal(64)),
        32,
        (3, 17),
    ),
    Case(
        "where on a mask",
        where_mask,
        lambda n, w: (torch.rand(n, w) < 0.5, _normal(n, w), _normal(n, w)),
        1024,
        (33, 1000),
    ),
    Case("sums: rows, columns, all", sums, lambda n, w: (_normal(n, w),), 1024, (33, 1000)),
    Case(
        "pool + permute + layer norm",
        pool_permute_norm,
        lambda n, w: (_normal(n, 96, w, w), _normal(96), _normal(96)),
        28,
        (3, 13),
    ),
    Case(
        "outer product + tanh",
        outer_product,
        lambda n, w: (_normal(n), _normal(w), _normal(w)),
        2048,
        (33, 999),
    ),
    Case("chain of 30", chain_of_30, lambda n, w: (_normal(n, w), _normal(n, w)), 1024, (33, 1000)),
    Case(
        "quantise rows and back",
        quantise_rows,
        lambda n, w: (_normal(n, w),),
        1024,
        (33, 1000),
        backward=False,
    ),
    Case(
        "softmax of short rows", softmax, lambda n, w: (_normal(n, w),), 20, (3, 31), rows=300_000
    ),
    Case(
        "softmax of long rows",
        softmax,
        lambda n, w: (_normal(n, w),),
        750_000,
        (8200, 100_001),
        rows=2,
    ),
    Case("sums of short rows", row_sums, lambda n, w: (_normal(n, w),), 32, (1, 29), rows=750_000),
    Case(
        "rows, columns, elementwise",
        rows_then_columns,
        lambda n, w: (_normal(n, w),),
        1024,
        (33, 1000),
    ),
)
