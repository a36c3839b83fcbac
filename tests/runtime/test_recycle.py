"""Memory of results is used again when nobody holds it any more, and never before."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hemstitch.runtime import recycling as recycle
from hemstitch.runtime.recycling import (
    LEAST_BYTES,
    AllocationSite,
    Layout,
    raise_malloc_thresholds,
    recycling_allocator,
)

COUNT = LEAST_BYTES // 4
LAYOUT = Layout((COUNT,), (1,), torch.float32)


def filled(site: AllocationSite, value: float) -> Tensor:
    return site().fill_(value)


def test_a_dropped_result_is_used_again() -> None:
    site = recycling_allocator(LAYOUT)
    first = site()
    place = first.data_ptr()
    del first
    again = site()
    assert again.data_ptr() == place
    assert not again._is_view() and again._version == 0 and not again.requires_grad


def test_a_loop_that_holds_the_last_result_needs_two_blocks() -> None:
    site, result, places = recycling_allocator(LAYOUT), None, set()
    for _ in range(10):
        result = site()
        places.add(result.data_ptr())
    assert len(places) == 2


def test_sites_share_what_has_as_many_bytes() -> None:
    """As gradients take what was saved for backward, in whatever shape."""
    first = recycling_allocator(LAYOUT)
    second = recycling_allocator(Layout((COUNT // 8, 8), (1, COUNT // 8), torch.float32))
    other = recycling_allocator(Layout((COUNT,), (1,), torch.int32))
    result = first()
    place = result.data_ptr()
    del result
    again = second()
    assert again.data_ptr() == place
    assert again.shape == (COUNT // 8, 8) and again.stride() == (1, COUNT // 8)
    assert not again._is_view() and again._version == 0
    assert first().data_ptr() != place and other().data_ptr() != place


def test_memory_goes_with_the_last_site() -> None:
    site = recycling_allocator(LAYOUT)
    pool = weakref.ref(site._pool)
    held = site()
    assert recycling_allocator(LAYOUT)._pool is pool()
    del site
    gc.collect()
    assert pool() is None and held.shape == (COUNT,)


def test_what_a_dropped_site_needed_is_given_back() -> None:
    sites = [recycling_allocator(LAYOUT) for _ in range(5)]
    held = [site() for site in sites]
    pool = sites[0]._pool
    assert len(pool.blocks) == 5
    del held, sites[1:]
    gc.collect()
    assert len(pool.blocks) == 2


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "view": lambda x: x[10:20],
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "array": lambda x: x.numpy(),
    "storage": lambda x: x.untyped_storage(),
    "dlpack": lambda x: torch.from_dlpack(x),
    "parameter": lambda x: torch.nn.Parameter(x),
    "graph": lambda x: (x.requires_grad_() * 2).sum(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_in_any_way_is_left_alone(holder: str) -> None:
    site = recycling_allocator(LAYOUT)
    result = filled(site, 1.0)
    place, held = result.data_ptr(), HOLDERS[holder](result)
    del result
    others = [filled(site, 2.0) for _ in range(3)]
    assert place not in {other.data_ptr() for other in others}
    del held


def test_results_that_are_collected_stay_what_they_were() -> None:
    site = recycling_allocator(LAYOUT)
    results = [filled(site, float(k)) for k in range(7)]
    assert [result[-1].item() for result in results] == list(range(7))


def test_a_result_that_was_resized_or_shared_is_given_up() -> None:
    for change in (lambda x: x.resize_(10 * COUNT), lambda x: x.share_memory_()):
        site = recycling_allocator(LAYOUT)
        result = site()
        change(result)
        place = result.data_ptr()
        del result
        new = site()
        assert new.data_ptr() != place and new.shape == (COUNT,)


def test_inference_mode_keeps_its_tensors_to_itself() -> None:
    site = recycling_allocator(Layout((COUNT + 1,), (1,), torch.float32))  # a pool of its own
    with torch.inference_mode():
        assert site().is_inference()
    assert not site().is_inference()


def test_threads_never_share_a_block() -> None:
    site, wrong = recycling_allocator(LAYOUT), []

    def work(value: float) -> None:
        for _ in range(300):
            result = filled(site, value)
            if not bool((result == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_site_borrows_while_another_thread_creates_pools() -> None:
    """Pools come and go with the call lists of other threads."""
    borrower = recycling_allocator(LAYOUT, borrows=True)
    extents = range(8 * COUNT, 8 * COUNT + 1000)  # too large to borrow from
    layouts = [Layout((extent,), (1,), torch.float32) for extent in extents]
    pools = [recycling_allocator(layout) for layout in layouts[::2]]  # a long iteration
    is_done, interval = threading.Event(), sys.getswitchinterval()

    def create() -> None:
        while not is_done.is_set():
            for layout in layouts[1::2]:
                recycling_allocator(layout)

    creator = threading.Thread(target=create)
    sys.setswitchinterval(1e-6)
    creator.start()
    try:
        for _ in range(200):
            borrower._borrowed()
    finally:
        is_done.set()
        creator.join()
        sys.setswitchinterval(interval)
    assert len(pools) == len(layouts) // 2


def double(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


@pytest.mark.parametrize("recycle", [True, False])
def test_the_option(recycle: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(double, backend="hemstitch", options={"recycle": recycle})
    x = torch.randn(COUNT)
    held = compiled(x)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), double(x))
    torch.testing.assert_close(held, double(x))


def test_training_steps_keep_nothing_that_is_in_use() -> None:
    """Losses of several steps, gradients that accumulate, and a graph that is used twice."""
    torch._dynamo.reset()
    compiled = torch.compile(double, backend="hemstitch")
    x = torch.randn(COUNT, requires_grad=True)
    expected = torch.autograd.grad(double(x).sum(), x)[0]
    results = []
    for step in range(1, 5):
        result = compiled(x)
        results.append(result)
        result.sum().backward(retain_graph=True)
        assert x.grad is not None
        torch.testing.assert_close(x.grad, expected * step)
    for result in results:
        torch.testing.assert_close(result, double(x))
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], expected)


STEPS = """
import resource, statistics, torch
import torch.nn.functional as F

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x, weight = torch.randn(8, 16, 96, 96), torch.randn(64, 16, 3, 3, requires_grad=True)
step = torch.compile(lambda x: F.conv2d(x, weight).relu().sum(), backend="hemstitch")
counts = []
for _ in range(9):
    before = faults()
    (gradient,) = torch.autograd.grad(step(x), [weight])
    counts.append(faults() - before)
print(int(statistics.median(counts[-5:])))  # once, another program may have taken pages
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_results_of_library_calls_are_not_mapped_page_by_page_in_each_step() -> None:
    """The convolution's is 17 MB, 4,300 pages."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        env={**os.environ, "HEMSTITCH_CACHE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 1000


def test_what_the_program_says_of_malloc_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle, "ctypes", None)  # by which it would be changed
    for name in [*os.environ]:
        if name.startswith(("MALLOC_", "GLIBC_TUNABLES")):
            monkeypatch.delenv(name)
    with pytest.raises(AttributeError):
        raise_malloc_thresholds.__wrapped__()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    raise_malloc_thresholds.__wrapped__()
