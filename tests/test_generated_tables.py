"""Tables that tools write into pages are what the recorded results say, and text around them names
figures that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import counts, operator_table, start, table
from benchmarks.gpu import render
from benchmarks.launches import __main__ as launches
from benchmarks.planners import __main__ as planners
from benchmarks.rivals import table as rivals
from benchmarks.table import COUNTS, MEASUREMENTS, PERFORMANCE, USER
from benchmarks.zoo import table as zoo

ROOT = USER.parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKER = re.compile(r"<!-- (.+?): made by (?:python -m )?([\w./]+)(?: --render)? -->")
MODELS = (
    *("training-epyc-zen4.json", "training-bf16-epyc-zen4.json"),
    "inference-epyc-zen4.json",
)


def record(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def hosts() -> list[Any]:
    files = sorted(path.name for path in RESULTS.glob("cpu-*.json"))
    return [record(name) for name in files if "pages-kept" not in name]


def assert_between(page: Path, marks: Sequence[str], rows: Sequence[str]) -> None:
    assert "\n".join([marks[0], *rows, marks[1]]) in page.read_text(encoding="utf-8")


def test_times_are_as_recorded() -> None:
    rows = table.table(hosts(), "hemstitch")
    assert_between(PERFORMANCE, (table.START, table.END), rows)
    assert_between(PERFORMANCE, start.MARKS, start.table(record("start-epyc-zen4.json")))
    gpu = record("gpu-h200.json")
    assert_between(PERFORMANCE, (render.START, render.END), render.table(gpu))
    assert_between(PERFORMANCE, (render.EACH_START, render.EACH_END), render.programs(gpu))


@pytest.mark.parametrize("name", MODELS)
def test_models_are_as_recorded(name: str) -> None:
    path = RESULTS / name
    assert_between(PERFORMANCE, rivals.marks(path), rivals.short(path))
    assert_between(MEASUREMENTS, rivals.marks(path), rivals.full(path))


@pytest.mark.parametrize(
    ("tool", "name"),
    [(counts, "cuda-counts.json"), (launches, "launches.json"), (planners, "planners.json")],
    ids=["counts", "launches", "planners"],
)
def test_counts_are_as_recorded(tool: Any, name: str) -> None:
    assert_between(COUNTS, (tool.START, tool.END), tool.table(record(name)))


def test_the_writer_of_each_table_is_there() -> None:
    made = [made for page in USER.glob("*.md") for _, made in MARKER.findall(page.read_text())]
    assert len(made) == 13
    for name in made:
        place = ROOT / (name if "/" in name else name.replace(".", "/"))
        assert place.exists(), name


def test_pages_without_records_have_the_text_of_their_writers() -> None:
    """Their records are too large to be kept here."""
    assert zoo.PAGE.read_text().startswith(zoo.HEAD)
    fixed = re.split(r"\{\w+\}", operator_table.INTRODUCTION)
    page = operator_table.DOCUMENT.read_text()
    assert [text for text in fixed if text not in page] == []
    slow = page.partition("\n".join(operator_table.SLOW_HEAD))[2].strip().splitlines()
    reasons = {line.rpartition(" | ")[2].removesuffix(" |") for line in slow}
    assert reasons <= {*operator_table.REASONS.values()}


@pytest.mark.parametrize("page", [ROOT / "README.md", USER / "when-to-use.md"], ids=str)
def test_ratios_that_are_quoted_are_in_a_table(page: Path) -> None:
    quoted = page.read_text().partition("## Measured on")[0]
    tables = "".join(path.read_text() for path in (PERFORMANCE, operator_table.DOCUMENT))
    ratios = re.findall(r"\d+\.\d\dx", quoted)
    assert ratios and [ratio for ratio in ratios if ratio not in tables] == []
