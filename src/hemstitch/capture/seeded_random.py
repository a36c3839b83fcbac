"""Random numbers as pure functions of a seed: the ops `hemstitch::draw_seed`, which asks torch's
generator for a seed, and `hemstitch::uniform`, which is Philox and may be computed twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.fx

from hemstitch.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

DRAW_SEED = "hemstitch::draw_seed"
UNIFORM = "hemstitch::uniform"
MAX_SEED = 2**62
MASK = 2**32 - 1

torch.library.define(
    DRAW_SEED,
    "(int slot, *, Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
torch.library.define(UNIFORM, "(Tensor seed, SymInt[] size) -> Tensor")


def draw_seeds(count: int, device: torch.device) -> torch.Tensor:
    """All seeds that one call of a graph needs, from torch's default generator."""
    return torch.randint(MAX_SEED, (count,), dtype=torch.int64, device=device)


def draw_at_once(traced: torch.fx.GraphModule) -> None:
    """Change `traced` so that it draws all seeds on a device by one call, where it drew the first.
    Compiled or not, it then makes the same numbers."""
    graph, on_device = traced.graph, defaultdict(list)
    for draw in graph.find_nodes(op="call_function", target=torch.ops.hemstitch.draw_seed.default):
        on_device[draw.meta["val"].device].append(draw)
    for device, draws in on_device.items():
        first = draws[0]
        with graph.inserting_before(first):
            seeds = graph.call_function(draw_seeds, (len(draws), device))
        seeds.meta = {**first.meta, "val": first.meta["val"].new_empty(len(draws))}
        for place, draw in enumerate(draws):
            with graph.inserting_before(draw):
                seed = graph.call_function(torch.ops.aten.select.int, (seeds, 0, place))
            seed.meta = dict(draw.meta)
            draw.replace_all_uses_with(seed)
            graph.erase_node(draw)
    if on_device:
        traced.recompile()


@torch.library.impl(DRAW_SEED, "BackendSelect")
def _draw_seed(slot: int, *, device: torch.device) -> torch.Tensor:
    return draw_seeds(1, device)[0].clone()


def _fake_draw_seed(slot: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


@torch.library.impl(UNIFORM, "default")
def _uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """As `ir/philox.py` has it, wherever `seed` is. The product of two words wraps around in int64,
    and its bits are right."""
    count = prod(size)
    counter = torch.arange(-(-count // 4), device=seed.device)
    words: list[Any] = [counter & MASK, counter >> 32, 0, 0]
    keys = [seed & MASK, seed >> 32 & MASK]
    for _ in range(ROUNDS):
        low, high = (words[2 * k] * MULTIPLIERS[k] for k in range(2))
        words = [
            (high >> 32 & MASK) ^ words[1] ^ keys[0],
            high & MASK,
            (low >> 32 & MASK) ^ words[3] ^ keys[1],
            low & MASK,
        ]
        keys = [(key + step) & MASK for key, step in zip(keys, KEY_STEPS)]
    mantissas = torch.stack(words, -1).reshape(-1)[:count] >> 8
    return (mantissas.float() * 2.0**-24).reshape(tuple(size))


def _fake_uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return seed.new_empty(size, dtype=torch.float32)


torch.library.register_fake(DRAW_SEED, _fake_draw_seed)
torch.library.register_fake(UNIFORM, _fake_uniform)
