"""Kernels and bytes on a GPU that is not there: no more than Inductor's, but where said."""

from __future__ import annotations

import pytest

from benchmarks import counts
from tests.front_door.counted import counted

SLACK = 1.02  # partial sums of column reductions: how many depends on the programs of a launch
MORE_BYTES = {
    ("softmax of long rows", "forward"): "two phases, 3 MB a row: the second one reads from L2",
    ("softmax of long rows", "both"): "the same",
    ("linear + residual + layer norm", "forward"): "it multiplies, and so reads the matrices",
    ("transformer block", "forward"): "the same, of the attention's last product",
}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return counted("benchmarks.counts", tmp_path_factory.mktemp("counts") / "counts.json")


def moved(each):
    return each["bytes_read"] + each["bytes_written"]


def launches(each):
    return each["kernels"] + each["library_calls"]


def test_every_program_was_counted(record) -> None:
    assert len(record["lines"]) == len(counts.programs())
    assert all(moved(line[name]) for line in record["lines"] for name in ("hemstitch", "inductor"))


def test_no_more_kernels_and_launches_than_inductor(record) -> None:
    for line in record["lines"]:
        ours, theirs = line["hemstitch"], line["inductor"]
        calls_fewer = theirs["library_calls"] - ours["library_calls"]  # kernels that multiply
        assert ours["kernels"] <= theirs["kernels"] + calls_fewer, counts.row(line)
        assert launches(ours) <= launches(theirs), counts.row(line)


def test_no_more_bytes_than_inductor(record) -> None:
    for line in record["lines"]:
        more = moved(line["hemstitch"]) > SLACK * moved(line["inductor"])
        assert more == ((line["program"], line["direction"]) in MORE_BYTES), counts.row(line)


def test_kernels_together(record) -> None:
    """Where several of Inductor's kernels are one."""
    total = {n: sum(x[n]["kernels"] for x in record["lines"]) for n in ("hemstitch", "inductor")}
    assert total["hemstitch"] < 0.6 * total["inductor"], total
