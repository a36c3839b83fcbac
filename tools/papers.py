"""The checklist of what the papers can do, and which test holds each row.

python -m tools.papers              runs tests/papers and prints the table
python -m tools.papers --write      also writes it to docs/papers.md

A row passes if all tests named after it do.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "papers.md"
START, END = "<!-- made by tools/papers.py -->", "<!-- end of the table -->"
MARKER, FIGURE = "needs_gpu", "measured"  # see tests/papers/conftest.py
ROWS = {
    "F1-1": "elementwise, views and reductions in one kernel",
    "F1-2": "small product of matrices inside, by a switch",
    "F1-3": "softmax, dropout, product in one kernel",
    "F1-4": "independent operations share launches",
    "F1-5": "integer program finds the best of its candidates",
    "F1-6": "plans without cycles, longer ones too",
    "F1-7": "heuristics bound the space that is searched",
    "F1-8": "layers of work and span, library calls cut",
    "F1-9": "greedy fusion gives up what would be a cycle",
    "F1-10": "schedules propagate from results to operands",
    "F1-11": "every kernel has a schedule, several roots agree",
    "F1-12": "budget of on-chip memory, shrinking by recomputing",
    "F1-13": "on-chip memory is shared by what lives apart",
    "F1-14": "buffered expensive values are computed once",
    "F1-15": "persistent performance library",
    "F1-16": "half the kernels of five small models",
    "F2-1": "kernel packing with loop fusion",
    "F2-2": "thread composition: registers only",
    "F2-3": "warp composition: shuffles only",
    "F2-4": "block composition: on-chip memory and its barrier",
    "F2-5": "groups with schedules of their own in one kernel",
    "F2-6": "expensive operations may be sub-roots",
    "F2-7": "schedules that violate locality are dropped",
    "F2-8": "latency evaluator and occupancy",
    "F2-9": "delta evaluator",
    "F2-10": "pattern reduction keeps the best three",
    "F2-11": "search in linear time",
    "F2-12": "beam search over plans",
    "F2-13": "cycles rejected",
    "F2-14": "remote fusion",
    "F2-15": "no pattern across blocks without global stitching",
    "F2-16": "on-chip memory is used again",
    "F2-17": "each index is computed once",
    "F2-18": "asynchronous compilation",
    "F2-19": "never worse than conservative fusion",
    "F2-20": "few kernels in whole models",
    "F2-21": "time in memory-bound kernels, global reads",
    "AS-1": "one kernel for each region between products",
    "AS-2": "remote stitching",
    "AS-3": "the graph of Figure 7 in one kernel",
    "AS-4": "dominants are found and merged",
    "AS-5": "schedules propagate both ways in a group",
    "AS-6": "passive block locality decides the scheme",
    "AS-7": "elementwise groups adapt to their producer",
    "AS-8": "horizontal packing of short rows",
    "AS-9": "vertical packing: one wave of blocks that loop",
    "AS-10": "few long rows are split",
    "AS-11": "global scheme in the middle",
    "AS-12": "device-wide barrier is safe",
    "AS-13": "resident blocks from registers and shared memory",
    "AS-14": "what does not fit on chip is demoted one by one",
    "AS-15": "scratch between phases is used again",
    "AS-16": "an element read by many is computed once",
    "AS-17": "an operation with several readers is computed once",
    "AS-18": "rows of any number and length, three types",
    "AS-19": "sums repeat bit for bit",
    "AS-20": "ablation switches",
    "AS-21": "compile cost of large graphs",
    "AS-22": "memory writes",
    "AS-23": "counts of kernels and of copies",
    "AS-24": "global stitching only where it pays, and a switch",
    "AS-25": "transparent to the user",
    "EV-1": "one line, forward and backward as one graph",
    "EV-2": "loss elimination, by option",
    "EV-3": "the table of decompositions",
    "EV-4": "batch norm with decoupled statistics",
    "EV-5": "a user's patterns and replacements",
    "EV-6": "reduction elimination",
    "EV-7": "softmax and cross entropy, forward and backward, as one softmax",
    "EV-8": "equal values, common factors, constants, dead code",
    "EV-9": "the integer program is right",
    "EV-10": "what must be fused, and what cannot be",
    "EV-11": "the graph of Figure 3",
    "EV-12": "division keeps the optimum",
    "EV-13": "components are feasible, the flag is honest",
    "EV-14": "equal components are solved once",
    "EV-15": "late solvers leave a plan",
    "EV-16": "an objective of real traffic",
    "EV-17": "each load node of an epilogue",
    "EV-18": "each store node of an epilogue",
    "EV-19": "every elementwise operation behind a product",
    "EV-20": "trees and graphs behind a product",
    "EV-21": "layout elimination",
    "EV-22": "shapes and strides propagate",
    "EV-23": "twenty unit patterns",
    "EV-24": "permuted operands and results of products",
    "EV-25": "dropout masks independent and recoverable",
    "EV-26": "products, convolutions, sparse products with epilogues",
    "EV-27": "softmax and layer norm, forward and backward",
    "EV-28": "convolution, batch norm, ReLU in training",
    "EV-29": "the perceptron's partition",
    "EV-30": "self-attention in five kernels",
    "EV-31": "autotuner in two stages",
    "EV-32": "a reduction and its reader in an epilogue",
    "EV-33": "one compile for many batch sizes",
    "EV-34": "safe in CUDA graphs",
    "EV-35": "every element type",
    "EV-36": "ablation switches",
    "EV-37": "models train as in eager",
}


@dataclass(slots=True)
class Found:
    """What became of the tests of one row."""

    tests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)  # by test: equal ones once
    waits: dict[str, None] = field(default_factory=dict)  # for a GPU, in words

    def state(self, row: str) -> str:
        if self.failed:
            return "fail"
        if not self.tests:
            return "not there yet"
        if self.skipped:
            return f"not run: {'; '.join(dict.fromkeys(self.skipped))}"
        return f"needs GPU: {'; '.join(self.waits)}" if self.waits else "pass"


class Collector:
    """A pytest plugin: sorts what is reported by the rows that tests are named after."""

    def __init__(self) -> None:
        self.rows: dict[str, Found] = defaultdict(Found)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            row = row_of(item.name)
            if row is None:
                continue
            name = item.name.partition("[")[0]
            if name not in self.rows[row].tests:
                self.rows[row].tests.append(name)
            for marker in item.iter_markers(MARKER):
                self.rows[row].waits[str(marker.args[0])] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = row_of(report.nodeid.rpartition("::")[2])
        if row is None:
            return
        found = self.rows[row]
        if report.failed:
            found.failed.append(report.nodeid)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            found.skipped.append(str(reason).removeprefix("Skipped: "))
        elif report.when == "call":
            words = [str(value) for name, value in report.user_properties if name == FIGURE]
            found.figures[report.nodeid] = "; ".join(words)


def row_of(test: str) -> str | None:
    """`test_AS_9_...` is AS-9."""
    match = re.match(r"test_(F1|F2|AS|EV)_(\d+)_", test)
    return f"{match[1]}-{match[2]}" if match else None


def figure(found: Found) -> str:
    """What was measured, by target where targets differ."""
    by_words: dict[str, list[str]] = {}
    for test, words in found.figures.items():
        label = re.search(r"\[(.*)\]$", test)
        if words:
            by_words.setdefault(words, []).append(label[1] if label else "")
    if len(by_words) == 1:
        return next(iter(by_words))
    return ". ".join(
        f"{', '.join(filter(None, labels))}: {words}" if any(labels) else words
        for words, labels in by_words.items()
    )


def table(rows: dict[str, Found]) -> list[str]:
    lines = ["| row | capability | state | measured | test |", "|---|---|---|---|---|"]
    for row, capability in ROWS.items():
        found = rows.get(row, Found())
        tests = ", ".join(f"`{name}`" for name in found.tests)
        lines.append(f"| {row} | {capability} | {found.state(row)} | {figure(found)} | {tests} |")
    return lines


def summary(rows: dict[str, Found]) -> str:
    states = [rows.get(row, Found()).state(row).partition(":")[0] for row in ROWS]
    counts = (f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(ROWS)} rows: {', '.join(counts)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.papers", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    arguments = parser.parse_args()
    collector = Collector()
    status = pytest.main([str(ROOT / "tests" / "papers"), "-q", "--no-header"], [collector])
    lines = [*table(collector.rows), "", summary(collector.rows)]
    print("\n".join(lines))
    if arguments.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
        text = "\n".join([START, *lines, END])
        PAGE.write_text(before + text + rest.partition(END)[2], encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
