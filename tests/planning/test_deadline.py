"""A planner that is out of time gives the conservative plan, wherever it was, and says so."""

from __future__ import annotations

import warnings
from random import Random

import pytest
import torch

from hemstitch.errors import GraphWarning, PlanWarning
from hemstitch.options import Options
from hemstitch.planning import planner
from hemstitch.planning.planner import make_plan
from hemstitch.planning.verifier import verify_plan
from hemstitch.stitching.deadline import Deadline, OutOfTime
from hemstitch.targets.cpu.description import generic_cpu
from tests.programs import Program

MACHINE = generic_cpu(2, 8)


class After(Deadline):
    """Time is up at the check of this number."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self.left = checks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OutOfTime("planning took more than 60 s")


def deadlines(patch: pytest.MonkeyPatch, *several: Deadline) -> None:
    left = iter(several)
    patch.setattr(planner, "Deadline", lambda seconds: next(left))


@pytest.mark.parametrize("name", ["auto", "beam", "ilp"])
def test_wherever_it_is_the_plan_is_the_conservative_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Program(Random(7), steps=14).graph
    counted = After(1 << 60)
    deadlines(monkeypatch, counted)
    own = make_plan(graph, MACHINE, Options(planner=name))
    checks = (1 << 60) - counted.left
    deadlines(monkeypatch, Deadline())
    conservative = make_plan(graph, MACHINE, Options(planner="conservative"))
    assert len(own.kernels) < len(conservative.kernels)
    for before in (0, 1, checks // 3, checks // 2, checks - 1):
        deadlines(monkeypatch, After(before), Deadline())
        with pytest.warns(PlanWarning, match="H009.*more than 60 s"):
            plan = make_plan(graph, MACHINE, Options(planner=name))
        verify_plan(plan)
        assert plan.cached_plan == conservative.cached_plan


def test_strict_raises_and_so_does_a_conservative_planner() -> None:
    graph = Program(Random(7)).graph
    for options in (Options(strict=True), Options(planner="conservative")):
        with pytest.raises(OutOfTime, match="more than 0 s"):
            make_plan(graph, MACHINE, options, seconds=0.0)
    with pytest.warns(PlanWarning), pytest.raises(OutOfTime):
        make_plan(graph, MACHINE, Options(), seconds=0.0)


@pytest.mark.parametrize("warning", [PlanWarning, GraphWarning])
def test_the_user_learns_it_and_has_the_same_results(
    warning: type[Warning], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    last = Deadline() if warning is PlanWarning else After(0)
    deadlines(monkeypatch, After(3), last)
    x = torch.randn(7, 9)
    function = torch.compile(lambda x: torch.softmax(x, -1).sum(0), backend="hemstitch")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = function(x)
        function(x)
    torch.testing.assert_close(result, torch.softmax(x, -1).sum(0))
    assert [issubclass(each.category, warning) for each in told].count(True) == 1
