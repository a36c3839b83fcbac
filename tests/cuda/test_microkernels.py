"""Measurements of a GPU, launched by Triton's own launcher on a stub: it takes their arguments and
options, and they give what the latency evaluator wants."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu import fit
from benchmarks.gpu.launcher import Launcher
from hemstitch.latency.architecture import HOPPER, Architecture

CLOCK = count(1.0)  # each launch takes longer


class OnStub(Launcher):
    """A real launch, of which a clock says nothing, with small tensors."""

    __slots__ = ()

    @property
    def is_real(self) -> bool:
        return True

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def processors(self) -> int:
        return 4

    @property
    def architecture(self) -> Architecture:
        return HOPPER

    def choose(self, real: int, emulated: int) -> int:
        return real if real < 1 << 12 else emulated

    def seconds_of(self, run: Callable[[], object]) -> float:
        run()
        return next(CLOCK)


@pytest.fixture
def launcher(driver, monkeypatch) -> OnStub:
    from triton.runtime.driver import driver as chosen  # noqa: PLC0415

    monkeypatch.setattr(chosen.active, "get_current_device", lambda: 0)
    monkeypatch.setattr(chosen.active, "get_current_stream", lambda index: driver.stream)
    monkeypatch.setattr(chosen.active, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(fit, "event_clock", lambda run: run() or next(CLOCK))
    monkeypatch.setattr(fit, "MEBIBYTE", 64)
    monkeypatch.setattr(fit, "describe", lambda kind: {})
    return OnStub("cuda")


@pytest.mark.parametrize("name", fit.MEASUREMENTS)
def test_a_measurement_is_launched(name, launcher, driver):
    driver.expect([])
    values = fit.MEASUREMENTS[name](launcher)
    assert all(value > 0 for value in values.values())
    assert {seen.stream for seen in driver.seen} == {driver.stream}
    assert any(seen.cooperative for seen in driver.seen) == (name == "barriers")


def test_what_the_measurements_are_called_is_what_the_constants_look_for(launcher):
    lines = [{"values": measure(launcher)} for measure in fit.MEASUREMENTS.values()]
    found = fit.fitted_from(launcher, lines)
    guessed = "constant, local, matrix, store, system register, warpgroup matrix"
    assert found.source.endswith(f"; guessed: {guessed}")


def test_a_step_that_takes_no_time_is_no_measurement(launcher, monkeypatch):
    monkeypatch.setattr(OnStub, "seconds_of", lambda self, run: 1.0)
    with pytest.raises(ValueError, match="4000 steps of block_barriers take no longer than 2000"):
        fit.barriers(launcher)
