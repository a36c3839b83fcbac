"""Arenas: each call in flight has one for itself."""

from __future__ import annotations

import torch

from hemstitch.kernel.placement import LINE
from hemstitch.runtime.memory import ArenaPool, View


def test_an_arena_is_taken_by_one_call_at_a_time():
    pool = ArenaPool([View(64, (2, 3), (3, 1), torch.float32)], 128, 32)
    first, second = pool.take(), pool.take()
    assert first is not second
    assert first.views[0].data_ptr() % LINE == 0 and first.views[0].shape == (2, 3)
    assert first.scratch == first.views[0].data_ptr() + 64
    pool.give_back(second)
    assert pool.take() is second
