"""A transformer block, as a workload whose launches are counted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HALF = torch.bfloat16


class Block(nn.Module):
    """With the normalisations before."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.first, self.second = (nn.LayerNorm(width, dtype=HALF) for _ in range(2))
        self.mixed = nn.Linear(width, 3 * width, dtype=HALF)
        self.out = nn.Linear(width, width, dtype=HALF)
        self.up = nn.Linear(width, 4 * width, dtype=HALF)
        self.down = nn.Linear(4 * width, width, dtype=HALF)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.mixed(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        # What attention becomes on a GPU; which kernel, PyTorch can only ask a real one.
        mixed = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y = self.down(F.gelu(self.up(self.second(x))))
        return x + (F.dropout(y, self.dropout) if self.dropout else y)
