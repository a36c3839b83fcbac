"""Memory of intermediates: of each call in flight its own, the same for one after the other."""

from __future__ import annotations

import gc
from functools import partial

import torch

from hemstitch.kernel.placement import LINE
from hemstitch.runtime.memory import SHARED, SharedMemory, View

WINDOW = View(64, (2, 3), (3, 1), torch.float32)


def test_a_block_is_taken_by_one_call_at_a_time():
    memory = SharedMemory()
    room = memory.room((WINDOW,), 128, 32)
    first, second = memory.take(room), memory.take(room)
    assert first is not second
    memory.give_back(second)
    assert memory.take(room) is second


def test_a_graph_sees_its_windows_and_scratch():
    memory = SharedMemory()
    room = memory.room((WINDOW,), 128, 32)
    block = memory.take(room)
    arena = block.arena(room)
    (window,) = arena.views
    assert window.data_ptr() % LINE == 0 and window.shape == (2, 3)
    assert arena.scratch == window.data_ptr() + 64
    assert block.arena(room) is arena


def test_graphs_share_a_block_that_is_large_enough_for_each():
    memory = SharedMemory()
    small, large = memory.room((WINDOW,), 128, 32), memory.room((), 0, 4096)
    block = memory.take(small)
    memory.give_back(block)
    larger = memory.take(large)
    assert larger is not block and larger.bytes >= 4096
    memory.give_back(larger)
    assert memory.take(small) is larger
    assert larger.arena(small).views[0].shape == (2, 3)


def test_what_only_a_dropped_graph_needed_is_given_back():
    memory = SharedMemory()
    small, large = memory.room((WINDOW,), 128, 32), memory.room((), 0, 4096)
    memory.give_back(memory.take(large))
    del large
    gc.collect()
    assert memory.take(small).bytes == small.bytes


def test_forward_and_backward_share_their_memory():
    torch._dynamo.reset()
    x = torch.randn(64, 256, requires_grad=True)
    weight = torch.randn(256, 256, requires_grad=True)

    @partial(torch.compile, backend="hemstitch", options={"products": False})
    def perceptron(x, weight):
        return torch.relu(torch.relu(x @ weight) @ weight).sum()

    def step():
        perceptron(x, weight).backward()
        return {id(block) for block in SHARED.free}

    step()
    before = step()
    assert step() == before


def test_memory_made_in_inference_mode_is_used_outside():
    memory = SharedMemory()
    room = memory.room((WINDOW,), 128, 32)
    with torch.inference_mode():
        block = memory.take(room)
        window = block.arena(room).views[0]
    torch.mm(torch.ones(2, 2), torch.ones(2, 3), out=window)
    assert not window.is_inference()
