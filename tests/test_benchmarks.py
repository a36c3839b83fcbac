"""The measurements measure what they say: every case runs, bytes are counted, ratios are paired."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import cpu, demo, machine, predictions, start, table
from benchmarks.calls import WRAPPERS, bytes_moved, prepared
from benchmarks.cases import CASES, Case, bytes_of, tensors
from benchmarks.enlarged import Operator
from benchmarks.operator_calls import _results, _saves, calls_alone
from benchmarks.timing import Timing, geometric_mean, paired


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_runs_and_has_gradients(case: Case) -> None:
    rows = 4 if case.rows is None else 2
    direction = "both" if case.backward else "forward"
    for width in (case.width, *case.odd):
        call = prepared(case, rows, direction, width=width)
        results = WRAPPERS[direction](case.exact or case.function)(*call)
        if case.backward:
            assert [x.shape for x in tensors(results)] == [x.shape for x in call[1]]
    assert bytes_moved(case, call[0], "forward") > 0


def test_a_broadcast_tensor_counts_once() -> None:
    row = torch.zeros(8)
    assert bytes_of((row, row.expand(100, 8), [torch.zeros(2, dtype=torch.int64)])) == 32 + 32 + 16
    assert len(tensors(([row], {"a": row}))) == 2


def test_the_bytes_of_a_softmax() -> None:
    (case,) = (case for case in CASES if case.name == "softmax of short rows")
    arguments = (torch.zeros(10, 20),)
    assert bytes_moved(case, arguments, "forward") == 2 * 800
    assert bytes_moved(case, arguments, "both") == 5 * 800  # x, y; x, dy, dx


def test_sizes_fit_their_cache() -> None:
    (case,) = (case for case in CASES if case.name == "layer norm")
    found = cpu.settings(case, 1, list(cpu.SIZE_CLASSES))
    sizes = {name: (rows * 8192, sets) for name, rows, sets in found}
    assert sizes["L2"][0] <= machine.cache_bytes(2)
    assert machine.cache_bytes(2) < sizes["L3"][0] * sizes["L3"][1] <= machine.cache_bytes(3)
    assert sizes["memory"][0] * sizes["memory"][1] > 2 * machine.cache_bytes(3)


def test_calls_take_turns_and_rotate_their_arguments() -> None:
    calls: list[tuple[str, int]] = []

    def recorder(name: str) -> object:
        return lambda value: calls.append((name, value))

    timings = paired({"a": recorder("a"), "b": recorder("b")}, [(1,), (2,), (3,)], rounds=4)  # type: ignore[dict-item]
    values = [value for _, value in calls]
    assert values[:9] == [1, 2, 3] * 3
    assert all(len(timing.samples) == 4 for timing in timings.values())


def test_a_ratio_is_taken_round_by_round() -> None:
    quick, slow = Timing((1.0, 10.0, 1.0)), Timing((2.0, 20.0, 2.0))
    assert quick.times_faster_than(slow) == 2.0
    assert (quick.median, quick.spread) == (1.0, pytest.approx(2.25))
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_a_backend_that_fails_is_reported() -> None:
    (case,) = (case for case in CASES if case.name == "GLU")
    line = cpu.measure(case, ("L2", 4, 1), "both", ["eager", "no such backend"], rounds=2)
    assert list(line.failures) == ["no such backend"]
    assert list(line.timings) == ["copy", "limit", "eager"]
    assert "failed" in cpu.text_of(line, ["eager", "no such backend"])
    assert any("failed: no such backend, GLU" in text for text in cpu.summary([line], "eager"))


def test_the_demo_page(tmp_path: Path) -> None:
    report = demo.Report(kernels=12, library_calls=30, bytes_read=4_000_000, bytes_written=1)
    runs = [
        demo.Run("eager", (2.0, 1.0), (2.0, 1.0), 1.0, Timing((0.2, 0.2)), None),
        demo.Run("other", (2.0, 1.01), (2.0, 1.1), 3.0, Timing((0.1, 0.1)), report),
    ]
    lines = demo.rows(runs)
    assert lines[1]["speed"] == "2.00x"
    assert demo.table(lines).count("\n") == 2
    assert demo.disagreements(runs) == ["other: losses without dropout differ from eager's"]
    demo.write_page(tmp_path / "demo.html", runs, lines)
    page = (tmp_path / "demo.html").read_text()
    assert "4.0 MB" in page and "src=" not in page and "http" not in page


def test_the_machine_is_described_in_json() -> None:
    record = json.loads(json.dumps(machine.describe()))
    assert record["torch"].startswith("2.") and record["cores"] >= 1


def test_results_go_between_markers() -> None:
    times = {"copy": 1.0, "limit": 1.6, "eager": 8.0, "inductor": 4.0, "ours": 2.0}
    line = {"threads": 2, "size_class": "L2", "direction": "both", "microseconds": times}
    about = {"processor": "P", "cores": 2, "vectors": "V", "torch": "2", "date": "2026-01-02T03"}
    rows = table.table([{"lines": [line], "machine": about}], "ours")
    assert "| P, V | 2 | L2 | 1 | 4.00x | 2.00x | 50% | 5.00x, 2.50x |" in rows
    text = table.insert(f"a\n{table.START}\nold\n{table.END}\nb\n", rows)
    assert text.startswith(f"a\n{table.START}\n| host") and text.endswith(f"{table.END}\nb\n")
    assert "old" not in text


def test_starts_go_into_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(["before", *start.MARKS, "after"]))
    seconds = {
        "a": {"inductor": [8.0, 2.0], "hemstitch": [4.0, 4.0]},
        "b": {"inductor": [18.0, 8.0], "hemstitch": [1.0, 1.0]},
    }
    rows = start.table({"machine": machine.describe(), "seconds": seconds})
    table.write(page, rows, *start.MARKS)
    lines = page.read_text().splitlines()
    assert "| a | 8.0 | 2.0 | 4.0 | 4.0 |" in lines
    assert "- the first start: Inductor takes 6.00 times as long (2 models)" in lines
    assert "- the second start: Inductor takes 2.00 times as long (2 models)" in lines
    assert (lines[0], lines[-1]) == ("before", "after")


def test_predictions_are_ranked_and_weighed() -> None:
    measured = (1.0, 2.0, 4.0)
    assert predictions.rank_correlation(measured, (10.0, 20.0, 21.0)) == pytest.approx(1)
    assert predictions.rank_correlation(measured, (3.0, 2.0, 1.0)) == pytest.approx(-1)
    assert predictions.error(measured, (2.0, 1.0, 8.0)) == pytest.approx(2)


def test_calls_alone_have_an_operators_arguments_and_results() -> None:
    operator = Operator(torch.mul, [torch.rand(3, 3), torch.rand(3, 3)], (True, True))
    adding = replace(operator, program=torch.add)
    viewing = replace(operator, program=lambda x, y: (x.t(), x + y), trained=(True, False))
    for alike, saves in ((operator, True), (adding, False), (viewing, False)):
        alone = calls_alone(alike)
        assert len(alone.tensors) == 2 and alone.trained == alike.trained
        assert sorted(_results(alone)) == sorted(_results(alike))
        assert _saves(alone) == _saves(alike) == saves
