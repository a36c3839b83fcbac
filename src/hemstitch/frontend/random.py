"""Random numbers as pure functions of a seed: the ops `hemstitch::draw_seed`, which asks torch's
generator for a seed, and `hemstitch::uniform`, which is Philox and may be computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from hemstitch.ir.philox import philox_reference

DRAW_SEED = "hemstitch::draw_seed"
UNIFORM = "hemstitch::uniform"
MAX_SEED = 2**62

torch.library.define(
    DRAW_SEED,
    "(int slot, *, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
torch.library.define(UNIFORM, "(Tensor seed, SymInt[] size) -> Tensor")


def draw_seeds(count: int, device: torch.device) -> torch.Tensor:
    """All seeds that one call of a compiled graph needs, from torch's default generator."""
    return torch.randint(MAX_SEED, (count,), dtype=torch.int64, device=device)


@torch.library.impl(DRAW_SEED, "BackendSelect")
def _draw_seed(slot: int, *, device: torch.device) -> torch.Tensor:
    return draw_seeds(1, device)[0].clone()


def _fake_draw_seed(slot: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


@torch.library.impl(UNIFORM, "default")
def _uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    values = philox_reference(int(seed), np.arange(prod(size), dtype=np.int64))
    return torch.from_numpy(values).reshape(tuple(size)).to(seed.device)


def _fake_uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return seed.new_empty(size, dtype=torch.float32)


torch.library.register_fake(DRAW_SEED, _fake_draw_seed)
torch.library.register_fake(UNIFORM, _fake_uniform)
