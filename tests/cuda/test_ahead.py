"""The kernels of a plan compile side by side, those of one kind once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from hemstitch.driver import gpu_kernels as ahead
from hemstitch.options import Options
from hemstitch.planning.plan import KernelStep
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

ALIKE = 3


def kernels() -> list[KernelStep]:
    """Products of the library in between; the first ones are of one kind."""

    def function(x: Any, weight: Any) -> Any:
        for _ in range(ALIKE):
            x = torch.relu(x @ weight)
        return torch.softmax(x, -1)

    x, weight = torch.zeros(8, 4096), torch.zeros(4096, 4096)
    ((_, plan),) = plans_of(function, (x, weight), generic_gpu())
    return list(plan.kernels)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names of kernels that are made, and by which thread."""
    found: list[tuple[str, int]] = []

    def launch_of(step: KernelStep, kind: str, index: int, tune: bool, cache: bool) -> str:
        name = step.stitched.kernel.name
        found.append((name, threading.get_ident()))
        return name

    monkeypatch.setattr(ahead, "launch_of", launch_of)
    monkeypatch.setattr(ahead, "threads_now", lambda: 4)
    return found


def test_the_first_of_each_kind_is_made_ahead(asked: list[tuple[str, int]]) -> None:
    steps = kernels()
    first = {id(step.stitched.kernel.phases): step for step in reversed(steps)}
    assert 1 < len(first) < len(steps)
    with ahead.launches(steps, Options(target="cuda"), 0) as make:
        assert [make(step) for step in steps] == [step.stitched.kernel.name for step in steps]
    others = [name for name, thread in asked if thread != threading.get_ident()]
    assert sorted(others) == sorted(step.stitched.kernel.name for step in first.values())
    assert len(asked) == len(steps)


@pytest.mark.parametrize("options", [{"tune": True}, {"asynchronous": True}])
def test_nothing_is_made_ahead_beside_a_clock_or_the_program(
    asked: list[tuple[str, int]], options: dict[str, bool]
) -> None:
    steps = kernels()
    with ahead.launches(steps, Options(target="cuda", **options), 0) as make:
        assert asked == []
        make(steps[0])
    assert [thread for _, thread in asked] == [threading.get_ident()]
