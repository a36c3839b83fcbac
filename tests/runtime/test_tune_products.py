"""How products on a processor are cut: by the clock, in two stages, remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.measure import matmul_tuner as tune
from hemstitch.measure.matmul_tuner import FINALISTS, ROW_BLOCKS, UNFUSED, Tuner
from hemstitch.measure.timing import seconds_of
from hemstitch.options import Options
from hemstitch.planning.planner import make_plan
from hemstitch.targets.cpu.description import generic_cpu
from tests.compiled import plans_of

CPU = generic_cpu(2, 8)
ALWAYS = replace(CPU, launch_seconds=1.0)


def step_of(function, *arguments):
    ((graph, _),) = plans_of(function, arguments, CPU)
    (step,) = make_plan(graph, ALWAYS, Options()).steps
    return step


def linear(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias))


@pytest.fixture(scope="module")
def step():
    return step_of(linear, torch.zeros(64, 300), torch.zeros(280, 300), torch.zeros(280))


class Clock:
    """Takes a kernel's number of members, and the least for one blocking."""

    def __init__(self, best: Blocking, stop_after: int | None = None) -> None:
        self.best, self.stop_after = best, stop_after
        self.asked: list[tuple[bool, Blocking]] = []

    def __call__(self, step, threads, blocking):
        if len(self.asked) == self.stop_after:
            raise KeyboardInterrupt
        is_alone = len(step.groups[0].members) < 4
        self.asked.append((is_alone, blocking))
        same = [a == b for a, b in zip(self.fields(blocking), self.fields(self.best))]
        return 1.0 - sum(same) / 10

    @staticmethod
    def fields(blocking):
        return blocking.rows, blocking.columns, blocking.steps


def test_first_the_product_alone_then_with_its_epilogue(step, tmp_path):
    clock = Clock(Blocking(128, 64, 256))
    assert Tuner(tmp_path, clock).blocking(step) == clock.best
    stages = [is_alone for is_alone, _ in clock.asked]
    fused_runs = len(clock.asked) - 1 - len(UNFUSED)
    assert stages == [False] + [True] * len(UNFUSED) + [False] * fused_runs
    assert len(clock.asked) <= 1 + len(UNFUSED) + FINALISTS * len(ROW_BLOCKS)


def test_the_second_time_nothing_is_measured(step, tmp_path):
    first = Clock(Blocking(32, 48, 512))
    Tuner(tmp_path, first).blocking(step)
    assert Tuner(tmp_path, Clock(USUAL, stop_after=0)).blocking(step) == first.best


def test_another_kernel_processor_or_number_of_threads_is_another_record(
    step, tmp_path, monkeypatch
):
    Tuner(tmp_path, Clock(USUAL)).blocking(step)
    for name, value in (("processor", lambda: "another"), ("threads_now", lambda: 7)):
        with monkeypatch.context() as patch:
            patch.setattr(tune, name, value)
            clock = Clock(Blocking(32))
            assert Tuner(tmp_path, clock).blocking(step) == clock.best
    half = step_of(
        linear, *(torch.zeros(s, dtype=torch.bfloat16) for s in ((64, 300), (280, 300), (280,)))
    )
    clock = Clock(Blocking(32))
    assert Tuner(tmp_path, clock).blocking(half) == clock.best
    assert len(list(tmp_path.iterdir())) == 4


def test_after_an_interrupt_the_best_so_far_counts_and_tuning_ends(step, tmp_path):
    clock = Clock(Blocking(128, 64, 256), stop_after=1 + len(UNFUSED) + 2)
    tuner = Tuner(tmp_path, clock)
    found = tuner.blocking(step)
    met = {blocking: len(met) for met in [[]] for _, blocking in clock.asked}
    assert found in met and tuner.is_stopped
    assert not list(tmp_path.iterdir())  # a search that was cut off is not remembered
    assert tuner.blocking(step) == USUAL


def test_time_is_bounded(step, tmp_path):
    assert Tuner(tmp_path, Clock(Blocking(128)), most=-1.0).blocking(step) == USUAL


def test_a_damaged_record_is_measured_again(step, tmp_path):
    Tuner(tmp_path, Clock(USUAL)).blocking(step)
    (record,) = tmp_path.iterdir()
    for text in ("", "{}", '{"rows": 0, "columns": 32, "steps": 1}', '{"rows": "x"}', "[1]"):
        record.write_text(text)
        clock = Clock(Blocking(32, 32, 256))
        found = Tuner(tmp_path, clock).blocking(step)
        assert found == (USUAL if text == "{}" else clock.best)


def test_kernels_without_products_are_as_usual(tmp_path):
    step = step_of(torch.relu, torch.zeros(64, 64))
    assert Tuner(tmp_path, Clock(USUAL, stop_after=0)).blocking(step) == USUAL


@pytest.mark.parametrize(
    "blocking", [USUAL, Blocking(32, 64, 256), Blocking(128, 48, 512)], ids=str
)
def test_the_clock_runs_every_blocking(step, blocking):
    assert 0 < seconds_of(step, 2, blocking) < 60


def test_the_option_computes_the_same(monkeypatch, tmp_path, kernels_multiply):
    monkeypatch.setattr(tune, "UNFUSED", (Blocking(columns=64, steps=256),))
    monkeypatch.setattr(tune, "ROW_BLOCKS", (32, 64))
    monkeypatch.setenv("HOME", str(tmp_path))
    # Else the clock would say whether a kernel multiplies.
    monkeypatch.setattr("hemstitch.driver.compiler.measurements", dict)
    given = [torch.randn(shape) for shape in ((200, 300), (280, 300), (280,))]
    function = torch.compile(linear, backend="hemstitch", options={"strict": True, "tune": True})
    torch.testing.assert_close(function(*given), linear(*given), rtol=1e-4, atol=1e-4)
    assert list((tmp_path / ".cache/hemstitch/tuned").iterdir())
