"""Which candidate runs: estimated without a GPU, timed by a clock of the test's, remembered."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")

from hemstitch.cache import records as remembered
from hemstitch.driver.gpu_kernels import candidates
from hemstitch.errors import KernelBuildError
from hemstitch.latency.architecture import architecture
from hemstitch.latency.disassembly import disassemble
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.measure import gpu_tuner as tune
from hemstitch.measure.gpu_estimate import bytes_of, estimate, shares, trips
from hemstitch.runtime.gpu import loaded_kernel as kernel
from hemstitch.runtime.gpu.loaded_kernel import build, variant_of
from hemstitch.targets.gpu.description import GPULowering
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.triton_cross import tools_folder
from tests.cuda import steps


@cache
def softmax() -> tuple[TritonProgram, ...]:
    step = steps.step_of(lambda x: torch.softmax(x, -1), torch.randn(2048, 1000))
    return tuple(candidates(step.stitched.kernel, GPULowering(step.groups[0].hint, 132)))


@pytest.fixture
def choose(driver, tmp_path, monkeypatch):
    """A function of the programs and `tune`; every kernel is large enough to be worth it."""
    monkeypatch.setattr(tune, "GPU", replace(GPU, tuned_bytes=0))

    def chosen(programs: tuple[TritonProgram, ...], timed: bool = False) -> TritonProgram:
        launcher = partial(steps.launcher_of, driver=driver)
        device, room = driver.device(), [2048 * 1000] * 2
        return tune.best(
            iter(programs), lambda program: (), room, device, timed, launcher, tmp_path
        )

    return chosen


class Guess(NamedTuple):
    """In place of an estimate."""

    seconds: float
    memory_seconds: float
    barrier_seconds: float

    @property
    def rank(self) -> tuple[float]:
        return (self.seconds,)


@pytest.fixture
def asked() -> list[TritonProgram]:
    """What was estimated, in order."""
    return []


@pytest.fixture
def floor() -> dict[TritonProgram, float]:
    """Seconds that each program must take for its bytes."""
    return {}


@pytest.fixture
def estimated(monkeypatch, asked, floor) -> dict[TritonProgram, float]:
    """Seconds that each program is said to take; one without does not compile."""
    seconds: dict[TritonProgram, float] = {}

    def estimate(program: TritonProgram, *more: Any) -> Any:
        if program not in seconds:
            raise KernelBuildError("it does not compile")
        asked.append(program)
        return Guess(seconds[program], floor.get(program, 0.0), 0.0)

    monkeypatch.setattr(tune, "estimate", estimate)
    return seconds


def test_candidates_differ_and_the_usual_one_is_first():
    programs = softmax()
    assert 3 <= len(programs) <= 5
    assert len({(program.text, program.warps) for program in programs}) == len(programs)
    assert len({program.warps for program in programs}) > 1


def test_an_estimate_of_each():
    found = [
        estimate(program, (), bytes_of(program, ()), architecture("sm_90")) for program in softmax()
    ]
    assert all(each.memory_seconds == found[0].memory_seconds for each in found)
    assert all(0 < each.seconds < 1e-3 for each in found)
    assert bytes_of(softmax()[0], ()) == 2 * 2048 * 1000 * 4


def test_trips_of_loops():
    """512 tiles for 128 programs; a part of each program, added up eight at a time."""
    program = steps.centred()
    built = build(program, variant_of(True, ()), "sm_90")
    code = disassemble(built.asm["cubin"], tools_folder())
    assert set(trips(program, code, (), 128).values()) == {4.0, 16.0}


def test_one_program_does_what_follows_a_ticket():
    """With many programs that is little work for all, and as long a wait as ever."""
    step = steps.step_of(lambda x: (x * x).mean(), torch.randn(1 << 10, 1 << 10))
    program = steps.program_of(step)
    assert program.has_last_block
    code = disassemble(build(program, variant_of(True, ()), "sm_90").asm["cubin"], tools_folder())
    found = shares(program, code, 132)
    text = program.text.splitlines()
    assert set(found.values()) == {1 / 132}
    rows = {text[line.line - 1].strip() for line in found}
    assert any(row.startswith("part11 = tl.load") for row in rows)
    assert not any(row.startswith("v6 = tl.load") for row in rows)
    assert not shares(steps.centred(), code, 132)
    guess = estimate(program, (), bytes_of(program, ()), architecture("sm_90"))
    assert guess.warp_cycles < guess.slowest_cycles


def test_no_more_programs_than_meet():
    """Though more would fit."""
    step = steps.step_of(lambda x: x - x.mean(0), torch.randn(1 << 14, 1 << 10))
    program = steps.program_of(step)
    guess = estimate(program, (), bytes_of(program, ()), architecture("sm_90"))
    fitting = guess.occupancy.blocks
    assert program.barriers and fitting > GPU.cooperative_programs
    assert guess.waves == GPU.cooperative_programs / fitting


def test_the_best_estimate_if_it_is_clearly_better(choose, estimated):
    programs = softmax()
    estimated.update(zip(programs, (1.0, 0.95, 2.0)))
    assert choose(programs) is programs[0]
    estimated[programs[1]] = 0.5
    assert choose(programs[:2]) is programs[1]


def test_where_bytes_decide_only_the_usual_one_is_estimated(choose, estimated, asked, floor):
    programs = softmax()
    estimated.update(zip(programs, (1.0, 0.1)))
    floor[programs[0]] = 0.95
    assert choose(programs) is programs[0] and asked == [programs[0]]


def test_the_usual_one_where_nothing_is_known(choose, estimated, driver, tmp_path):
    assert choose(softmax()) is softmax()[0]
    estimated.update(zip(softmax(), (1.0, 0.1)))
    without_table = driver.device(0, "sm_89")
    found = tune.best(iter(softmax()), lambda _: (), [], without_table, False, None, tmp_path)
    assert found is softmax()[0]


def test_a_small_kernel_is_not_worth_it(choose, estimated, monkeypatch):
    monkeypatch.undo()
    assert bytes_of(steps.pointwise(), ()) < GPU.tuned_bytes
    assert choose((steps.pointwise(),) * 2) is steps.pointwise()


def test_with_a_clock_the_fastest_of_the_best_estimates(
    choose, estimated, monkeypatch, driver, tmp_path
):
    programs = softmax()
    estimated.update(zip(programs, (3.0, 1.0, 2.0, 4.0)))
    clock = iter((7.0, 5.0, 6.0))

    def do_bench(launch, **more: object) -> float:
        launch()
        return next(clock)

    monkeypatch.setattr(tune, "do_bench", do_bench)
    assert choose(programs, timed=True) is programs[2]
    assert len(driver.seen) == tune.MOST_TIMED
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["seconds"] == {"1": 7e-3, "2": 5e-3, "0": 6e-3}


def test_a_candidate_that_cannot_be_loaded_is_not_timed(choose, estimated, monkeypatch, driver):
    programs = softmax()
    estimated.update(zip(programs, (3.0, 1.0)))

    def do_bench(launch, **more: object) -> float:
        launch()
        return 1.0

    monkeypatch.setattr(tune, "do_bench", do_bench)
    load = kernel.load
    monkeypatch.setattr(
        "hemstitch.runtime.gpu.launch.load",
        lambda program, *more, **cache: (
            refuse() if program is programs[1] else load(program, *more, **cache)
        ),
    )
    assert choose(programs, timed=True) is programs[0] and len(driver.seen) == 1


def refuse() -> None:
    raise KernelBuildError("it cannot be loaded")


def test_the_winner_is_remembered(choose, estimated):
    programs = softmax()
    estimated.update(zip(programs, (1.0, 0.1)))
    assert choose(programs) is programs[1]
    estimated.clear()
    assert choose(programs) is programs[1]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"chosen": 9}', '{"chosen": "1"}', "null"])
def test_a_file_that_is_not_whole_counts_for_nothing(choose, estimated, tmp_path, text):
    programs = softmax()
    estimated.update(zip(programs, (1.0, 0.1)))
    choose(programs)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert choose(programs) is programs[1] and json.loads(file.read_text())["chosen"] == 1


def test_a_disk_that_cannot_be_written_to(choose, estimated, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(remembered.tempfile, "mkstemp", refuse)
    estimated.update(zip(softmax(), (1.0, 0.1)))
    assert choose(softmax()) is softmax()[1]
