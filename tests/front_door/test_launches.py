"""The fifty programs on a GPU that is not there: launches and bytes, within what they need."""

from __future__ import annotations

import json

import pytest

from benchmarks import counting
from benchmarks.counting import launches
from benchmarks.launches import PROGRAMS
from benchmarks.launches.__main__ import RESULTS, ratio, row, table
from benchmarks.table import COUNTS
from tests.front_door.counted import counted

MOST_LAUNCHES = 120
MOST_BYTES = 1.15  # times the floor, each tensor once a kernel
MORE_BYTES = {
    "Sinkhorn, three rounds": "three times partial sums of 2,048 columns from 132 programs",
    "column sums of 16 tensors": "partial sums of 132 programs beside only 3 MB",
    "clip by norm + momentum, 12 tensors": "a kernel for the norm of all gradients",
    "pool + similarity": "a second kernel that reads again takes less than four phases that do",
}
READ_AGAIN = {  # behind a barrier, since all of a tensor comes before any result
    "centre columns, scale + softmax": "the sums of columns",
    "clip one gradient by its norm": "the norm",
    "quantise a tensor": "the greatest value",
    **MORE_BYTES,
}


def recorded():
    return json.loads(RESULTS.read_text())


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Hemstitch's anew, Inductor's as recorded."""
    return counted("benchmarks.launches", tmp_path_factory.mktemp("launches") / "launches.json")


def test_fifty_programs_are_recorded() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names) == 50
    assert [line["program"] for line in recorded()["lines"]] == names


def test_the_record_is_what_is_counted(record) -> None:
    """Else: python -m benchmarks.launches --json benchmarks/results/launches.json"""
    for line, before in zip(record["lines"], recorded()["lines"]):
        assert launches(line["hemstitch"]) == launches(before["hemstitch"]), row(line)
        assert line["ideal"] == before["ideal"], row(line)


def test_no_more_launches_than_inductor(record) -> None:
    for line in record["lines"]:
        assert launches(line["hemstitch"]) <= launches(line["inductor"]), row(line)


def test_launches_together(record) -> None:
    theirs, ours = (
        sum(launches(line[name]) for line in record["lines"]) for name in counting.NAMES
    )
    assert ours <= MOST_LAUNCHES < 0.5 * theirs


def test_what_is_above_the_ideal_says_why(record) -> None:
    for line in record["lines"]:
        assert launches(line["hemstitch"]) <= line["ideal"] or line["reasons"], row(line)


def test_arguments_and_results_move_once(record) -> None:
    for line in record["lines"]:
        if line["floor"] is not None:
            more = ratio(line, again=False) > MOST_BYTES
            assert more == (line["program"] in MORE_BYTES), row(line)


def test_only_what_must_be_known_whole_is_read_again(record) -> None:
    for line in record["lines"]:
        if line["floor"] is not None:
            again = ratio(line, again=True) > MOST_BYTES
            assert again == (line["program"] in READ_AGAIN), row(line)


def test_the_page_has_the_recorded_table() -> None:
    assert "\n".join(table(recorded())) in COUNTS.read_text(encoding="utf-8")
