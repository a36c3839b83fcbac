"""What the ranks of a job agree on, without processes: each looks into the same store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.machine.matmul_rates import MatmulTimings
from hemstitch.machine.probes import MatmulProbe, OperationProbe, Probe
from hemstitch.matmul.lowering.blocking import Blocking
from hemstitch.measure import multiplication as multiplying
from hemstitch.measure import ranks as job
from hemstitch.measure.matmul_tuner import Tuner
from hemstitch.measure.performance_library import measurements
from hemstitch.measure.ranks import agreed
from hemstitch.targets.cpu.description import generic_cpu
from tests.runtime.test_tune_products import linear, step_of

PROBE = OperationProbe(Op.EXP, DType.F32, DType.F32, rows=2, length=1024, lanes=8)
PRODUCT = MatmulProbe("kernel", DType.F32, 64, 64, 64, threads=2, lanes=8)


def never() -> Any:
    raise AssertionError("found out again")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    shared = dist.HashStore()
    monkeypatch.setattr(job, "_store", lambda: shared)
    return shared


def test_the_first_wins(store):
    assert agreed("key", lambda: {"rows": 64}) == {"rows": 64}
    assert agreed("key", never) == {"rows": 64}
    assert agreed("other", lambda: None) is None
    assert agreed("other", never) is None


def test_of_two_that_look_at_once_the_first_to_find_wins(store):
    def while_another_does() -> int:
        assert agreed("key", lambda: 1) == 1
        return 2

    assert agreed("key", while_another_does) == 1


def test_without_a_job_each_has_its_own():
    assert job._store() is None
    assert (agreed("key", lambda: 1), agreed("key", lambda: 2)) == (1, 2)


def test_the_store_is_the_jobs():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert (agreed("key", lambda: 1), agreed("key", never)) == (1, 1)
    finally:
        dist.destroy_process_group()


def test_a_store_that_does_not_answer_does_no_harm(monkeypatch):
    monkeypatch.setattr(job, "_store", FakeStore)
    assert (agreed("key", lambda: 1), agreed("key", lambda: 2)) == (1, 2)


def test_ranks_plan_with_the_same_figures(store):
    """Also with the same gaps: what one could not measure another must not use."""
    first, second = measurements({PROBE: 1e-6}), measurements({PROBE: 2e-6, PRODUCT: 1e-3})
    assert first[PROBE] == second[PROBE] == 1e-6
    assert first.get(PRODUCT) is None and second.get(PRODUCT) is None


def test_a_compile_asks_once(store):
    figures = measurements({PROBE: 1e-6})
    assert figures[PROBE] == 1e-6
    store.delete_key(f"hemstitch: {PROBE}")
    assert figures[PROBE] == 1e-6 and not store.check([f"hemstitch: {PROBE}"])


@pytest.mark.parametrize("first_is_fast", [True, False])
def test_whoever_multiplies_faster_is_one(store, monkeypatch, first_is_fast):
    def clock(kernel_is_fast: bool) -> Callable[[], dict[Probe, float]]:
        """Of a host where one takes twice as long for each multiplication."""
        library = 2e-9 if kernel_is_fast else 5e-10
        near, far = MatmulTimings(DType.F32, 2, 8, {}).probes
        return {
            probe: probe.operations * (library if probe.by == "library" else 1e-9)
            for probe in (*near, *far)
        }

    shares = []
    for is_fast in (first_is_fast, not first_is_fast):
        own = measurements(clock(is_fast))
        monkeypatch.setattr(multiplying, "measurements", lambda own=own: own)
        shares.append(multiplying.measured_units(2, 8)[DType.F32].share)
    assert shares == pytest.approx([2.0 if first_is_fast else 0.5] * 2)
    assert generic_cpu(2, 8).matrix_units[DType.F32].share not in shares


def test_ranks_cut_products_alike(store, tmp_path):
    """Though each has a cache and a clock of its own."""
    step = step_of(linear, torch.zeros(64, 300), torch.zeros(280, 300), torch.zeros(280))

    def tuned(place: Path, best: Blocking) -> Blocking:
        return Tuner(place, lambda step, threads, each: 1.0 - (each == best)).blocking(step)

    first = tuned(tmp_path / "0", Blocking(columns=64, steps=256))
    assert first.columns == 64 and first.steps == 256
    assert tuned(tmp_path / "1", Blocking(columns=48, steps=512)) == first
