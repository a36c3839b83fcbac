"""`python -m benchmarks.gpu`, tiny and emulated, and what it must survive on a GPU."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.calls import differentiable
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import correctness, kernels, render, speed
from benchmarks.gpu.rank import rank_correlation
from benchmarks.gpu.worker import Worker, standing_still, work
from benchmarks.table import PERFORMANCE
from benchmarks.timing import Timing
from hemstitch.latency.disassembly import disassemble
from hemstitch.latency.loops import find_loops
from hemstitch.targets.gpu.description import generic_gpu
from tests.compiled import plans_of

JOBS = "tests.worker_jobs"


def test_everything_runs_in_the_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "gpu.json"
    given = ["--device", "interpret", "--only", "scale + mask", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *given])
    command.main()
    record = json.loads(path.read_text())
    timed = [name for name in command.SHARES if name != "kernels"]  # needs a GPU's profiler
    assert list(record["lines"]) == timed
    assert [line for lines in record["lines"].values() for line in lines if "failure" in line] == []
    assert all(line["right"] for line in record["lines"]["correctness"])
    assert all(
        not line["failures"] for name in ("speed", "training") for line in record["lines"][name]
    )
    assert all(not phase["left out"] for phase in record["phases"])
    fitted = json.loads((tmp_path / "gpu-fitted.json").read_text())
    assert "guessed: constant, local, matrix" in fitted["source"]
    page = tmp_path / "page.md"
    marks = (render.START, render.END), (render.EACH_START, render.EACH_END)
    page.write_text("".join(f"{start}\nold\n{end}\n" for start, end in marks))
    render.write(path, page)
    assert "| tiny | f32 | forward | no | 1 |" in page.read_text() and "old" not in page.read_text()


def test_a_job_that_crashes_hangs_or_raises_ends_no_other() -> None:
    names = ["good", "crash", "raise", "hang", "good"]
    lines: list[dict[str, object]] = []
    jobs = [{"name": name} for name in names]
    left_out = work(JOBS, jobs, time.monotonic() + 60, lines.append, workers=1, limit=3.0)
    told = [line.get("failure", "good") for line in lines]
    assert not left_out and [told[0], told[-1]] == ["good", "good"]
    assert told[1].startswith("the process died (3): ") and told[1].endswith("last words")
    assert told[2:4] == ["ValueError: no good", "stopped after 3 s"]


def test_kernels_of_equal_replays_are_told_in_the_order_of_their_starts() -> None:
    turns = [(1.0, "add", 2.0), (2.0, "sum", 7.0), (5.0, "add", 3.0), (6.0, "sum", 9.0)]
    assert kernels.in_order(turns[::-1], 2) == [("add", 2.5), ("sum", 8.0)]
    with pytest.raises(ValueError, match="3 events do not make 2 equal replays"):
        kernels.in_order(turns[:3], 2)


def test_the_report_names_every_kernel() -> None:
    about = {"date": "2026-01-02", "device": "NVIDIA H200", "torch": "2.11", "triton": "3.6"}
    line = {"case": "block", "batch": 8, "sequence": 512, "contender": "inductor"}
    line |= {"microseconds": 580.0, "kernels": [["add", 2.5], ["sum", 8.0]]}
    told = list(render.report({"machine": about, "phases": [], "lines": {"kernels": [line]}}))
    assert told[-3:] == [
        "kernels of a block, [8, 512], inductor: 580.0 us",
        "      2.5 us  add",
        "      8.0 us  sum",
    ]


ADAMW = "AdamW, 60 tensors of 9 shapes"  # takes long to plan


@pytest.mark.parametrize("name", [name for name in correctness.BARRIERS if name != ADAMW])
def test_what_the_sanitizer_looks_at_has_programs_that_meet(name: str) -> None:
    case = correctness.case_named(name)
    arguments = case.arguments(*correctness.BARRIERS[name])
    backward = name != "sums: rows, columns, all"
    for tensor in differentiable(case, arguments) if backward else ():
        tensor.requires_grad_()
    plans = plans_of(case.function, arguments, generic_gpu(), backward)
    kernels = [step.stitched.kernel for _, plan in plans for step in plan.kernels]
    assert any(len(kernel.phases) > 1 for kernel in kernels)


def test_jobs_without_time_are_named() -> None:
    jobs = [{"name": "good"}] * 2
    assert work(JOBS, jobs, time.monotonic() - 1, lambda _: None, workers=2, limit=3.0) == jobs


def test_what_a_stopped_job_has_started_ends_with_it() -> None:
    lines: list[dict[str, int]] = []
    work(JOBS, [{"name": "parent"}], time.monotonic() + 60, lines.append, workers=1, limit=2.0)
    state = Path(f"/proc/{lines[0]['child']}/stat")
    end = time.monotonic() + 10
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_job_that_the_end_of_all_time_cuts_off_is_left_out(in_turns: bool) -> None:
    lines: list[dict[str, object]] = []
    jobs = [{"name": "hang"}]
    end = time.monotonic() + 1
    left_out = work(JOBS, jobs, end, lines.append, workers=1, limit=60.0, in_turns=in_turns)
    assert left_out == jobs and lines == []


def test_times_are_taken_one_after_the_other() -> None:
    lines: list[dict[str, float]] = []
    jobs = [{"name": "turn"}] * 3
    end = time.monotonic() + 60
    left_out = work(JOBS, jobs, end, lines.append, workers=2, limit=20.0, in_turns=True)
    assert not left_out and len(lines) == 3
    assert all(one["to"] <= other["from"] for one, other in pairwise(lines))


def test_others_stand_still_meanwhile() -> None:
    worker = Worker(JOBS)
    worker.start()
    assert worker.process is not None
    state = Path(f"/proc/{worker.process.pid}/stat")

    def is_stopped() -> bool:
        return state.read_text().split()[2] == "T"

    with standing_still([worker, Worker(JOBS)]):
        end = time.monotonic() + 10
        while not is_stopped():
            assert time.monotonic() < end
    assert list(worker.do({"name": "good"}, 30.0)) == [{"name": "good"}] and not is_stopped()
    worker.stop()


def test_a_process_under_another_program_says_how_it_ended() -> None:
    worker = Worker(JOBS, prefix=("env", "CLEAN=1"))
    assert list(worker.do({"name": "good"}, 30.0)) == [{"name": "good"}]
    assert worker.stop() == 0


def test_a_slice_leaves_its_time_to_those_behind_it() -> None:
    slices = list(command.SHARES)
    now = time.monotonic()
    first = command.deadline_of(0, slices, now + 540) - now
    assert first == pytest.approx(0.24 * (540 - command.RESERVE), abs=1)
    last = command.deadline_of(len(slices) - 1, slices, now + 540) - now
    assert last == pytest.approx(540 - command.RESERVE, abs=1)


FLOATS_LOADED = 4  # by one instruction
MEASURED = {  # what a step is made of
    "chase": ({"places": "*i32", "result": "*i32"}, {"BLOCK": 32}, "LDG"),
    "multiply_chain": ({"result": "*fp32"}, {"BLOCK": 32}, "FFMA"),
    "exponential_chain": ({"result": "*fp32"}, {"BLOCK": 32}, "MUFU"),
    "sum_chain": ({"result": "*fp32"}, {"BLOCK": 32}, "SHFL"),
    "load_rate": (
        {"source": "*fp32", "result": "*fp32", "span": "i32"},
        {"BLOCK": 1024, "CACHE": ""},
        "LDG",
    ),
    "store_rate": ({"result": "*fp32"}, {"BLOCK": 256}, "STG"),
    "block_barriers": ({"result": "*fp32"}, {}, "BAR"),
    "atomic_chain": ({"counters": "*i32", "result": "*i32"}, {}, "ATOMG"),
    "atomic_rate": ({"counters": "*fp32", "spread": "i32"}, {"BLOCK": 128}, "REDG"),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_microkernel_measures_is_in_its_loops(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in front of them, where the compiler puts what is the same in each step."""
    pytest.importorskip("triton")
    from benchmarks.gpu import microkernels  # noqa: PLC0415
    from hemstitch.toolchain.triton_cross import compile_for, tools_folder  # noqa: PLC0415

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature, constants, opcode = MEASURED[name]
    kernel = getattr(microkernels, name)
    built = compile_for(kernel, {**signature, "steps": "i32"}, constants, "sm_90", warps=4)
    code = disassemble(built.binary, tools_folder())
    loops = find_loops(code, {})
    assert loops
    for loop in loops:
        inside = [row.base for row in code.instructions if loop.holds(row.address)]
        assert inside.count(opcode) >= max(1, inside.count("FADD") // FLOATS_LOADED), inside


def test_ranks() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert rank_correlation([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)


def test_a_line_below_the_best_of_the_others_is_listed() -> None:
    timings = {
        name: Timing((seconds,) * 3)
        for name, seconds in (("copy", 0.5), ("eager", 3.0), ("inductor", 0.9), (speed.OURS, 1.0))
    }
    line = {"over": speed.over(timings)}
    assert line["over"] == {"copy": 0.5, "eager": 3.0, "inductor": 0.9}
    assert speed.below([line]) == [line]
    assert speed.below([{"over": {"copy": 0.5, "eager": 0.99}}]) == []


def test_the_page_has_places_for_the_tables() -> None:
    text = PERFORMANCE.read_text()
    assert all(
        mark in text for mark in (render.START, render.END, render.EACH_START, render.EACH_END)
    )
