"""Memory of intermediates: of each call in flight its own, the same for one after the other."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch

from hemstitch.errors import InternalError
from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.runtime.assembly import Assembly, IntermediateView, Slot
from hemstitch.runtime.executable import instantiate
from hemstitch.runtime.recycling import plain_allocator
from hemstitch.runtime.workspace import BLOCKS, ArenaView, BlockPool

WINDOW = ArenaView(64, (2, 3), (3, 1), torch.float32)


def test_a_block_is_taken_by_one_call_at_a_time():
    memory = BlockPool()
    layout = memory.layout((WINDOW,), (128,), 160)
    first, second = memory.take(layout), memory.take(layout)
    assert first is not second
    memory.give_back(second)
    assert memory.take(layout) is second


def test_a_graph_sees_its_windows_and_scratch():
    memory = BlockPool()
    layout = memory.layout((WINDOW,), (128,), 160)
    block = memory.take(layout)
    arena = block.arena(layout)
    (window,) = arena.views
    assert window.data_ptr() % CPU.line_bytes == 0 and window.shape == (2, 3)
    assert arena.scratch == (window.data_ptr() + 64,)
    assert block.arena(layout) is arena


def test_graphs_share_a_block_that_is_large_enough_for_each():
    memory = BlockPool()
    small, large = memory.layout((WINDOW,), (128,), 160), memory.layout((), (0,), 4096)
    block = memory.take(small)
    memory.give_back(block)
    larger = memory.take(large)
    assert larger is not block and larger.bytes >= 4096
    memory.give_back(larger)
    assert memory.take(small) is larger
    assert larger.arena(small).views[0].shape == (2, 3)


def test_what_only_a_dropped_graph_needed_is_given_back():
    memory = BlockPool()
    small, large = memory.layout((WINDOW,), (128,), 160), memory.layout((), (0,), 4096)
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

    gc.collect()
    known, count = list(BLOCKS._layouts), len(BLOCKS.free)
    perceptron(x, weight).backward()
    new = [layout for layout in BLOCKS._layouts if layout not in known]
    assert len(new) == 2 and all(layout.taken for layout in new)
    assert len(BLOCKS.free) == max(1, count)
    block = BLOCKS.free[-1]  # it may have grown for backward
    perceptron(x, weight).backward()
    assert BLOCKS.free[-1] is block and len(BLOCKS.free) == max(1, count)
    assert set(block._arenas) >= set(new)


def test_memory_made_in_inference_mode_is_used_outside():
    memory = BlockPool()
    layout = memory.layout((WINDOW,), (128,), 160)
    with torch.inference_mode():
        block = memory.take(layout)
        window = block.arena(layout).views[0]
    torch.mm(torch.ones(2, 2), torch.ones(2, 3), out=window)
    assert not window.is_inference()


@pytest.mark.parametrize(
    ("unit", "threads", "units"),
    [(1 << 20, 1, 6), (1 << 20, 2, 7), (CPU.shared_cache_bytes // 6, 2, 6)],
)
def test_as_far_as_a_cache_has_room_memory_is_halved_as_before(monkeypatch, unit, threads, units):
    """Where four units were, two lie in the middle, so that one more has no such place left."""
    monkeypatch.setattr("hemstitch.runtime.executable.threads_now", lambda: threads)
    slots = [Slot(4 * unit, 0, 1), Slot(2 * unit, 1, 3), Slot(2 * unit, 2, 3), Slot(unit, 2, 3)]
    assembly = Assembly("", {}, {}, slots, [], [], {}, torch.device("cpu"))
    code = compile("def run(arguments, views, scratch): ...", "run", "exec")
    call = instantiate(assembly, code, {}, plain_allocator)
    (layout,) = call.args[1:]
    assert layout.taken == pytest.approx(units * unit, rel=0.01)


def test_nothing_is_seen_beyond_its_own_memory():
    """In a row of four slots the next would be read and written."""
    slots = [Slot(64, 0, 1) for _ in range(4)]
    outside = IntermediateView(1, (3, 4), (16, 1), 0, DType.F32)
    assembly = Assembly("", {}, {}, slots, [outside], [], {}, torch.device("cpu"))
    code = compile("def run(arguments, views, scratch): ...", "run", "exec")
    with pytest.raises(InternalError, match="an intermediate of 64 bytes"):
        instantiate(assembly, code, {}, plain_allocator)


def test_what_a_custom_operation_keeps_stays_as_it_was():
    kept = []

    @torch.library.custom_op("hemstitch_tests::keep", mutates_args=())
    def keep(tensors: list[torch.Tensor]) -> torch.Tensor:
        kept.extend(tensors)
        return tensors[0].sum().reshape(1)

    @keep.register_fake
    def _(tensors):
        return tensors[0].new_empty(1)

    def program(x):
        hidden = x.sin() * 2
        total = keep([hidden, hidden.t() + 1, x])
        return ((x.cos() * 3).sort(0).values + total).exp().sort(1).values

    compiled = torch.compile(program, backend="hemstitch")
    x = torch.randn(30, 70)
    compiled(x)
    compiled(x + 1)
    hidden = x.sin() * 2
    torch.testing.assert_close(kept[:3], [hidden, hidden.t() + 1, x])
