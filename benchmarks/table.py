"""The pages that benchmarks write their tables into, and the table of `benchmarks.cpu`. Takes its
JSON files, of any hosts, and rewrites what docs/user/performance.md has between two markers.

python -m benchmarks.table benchmarks/results/cpu-*.json
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import geometric_mean

USER = Path(__file__).resolve().parents[1] / "docs" / "user"
PERFORMANCE = USER / "performance.md"  # what a user decides by
MEASUREMENTS = USER / "measurements.md"  # whole models, every way of every model
COUNTS = USER / "kernel-counts.md"  # kernels and bytes, for a GPU that is not there
ALL = "all"
SHOWN = ("L2", "L3", "memory", ALL)  # on one thread only all together
START, END = "<!-- numbers: made by benchmarks/table.py -->", "<!-- end of numbers -->"


def table(records: Sequence[dict[str, Any]], backend: str) -> list[str]:
    """Geometric means by host, threads and size class, and the conditions they hold under."""
    groups: dict[tuple[str, int, str], list[dict[str, float]]] = defaultdict(list)
    for record in records:
        for line in record["lines"]:
            if backend in line["microseconds"]:
                host = _host(record)
                for size_class in (line["size_class"], ALL):
                    groups[host, line["threads"], size_class].append(line["microseconds"])
    rows = ["| host | threads | tensors fit | cases | eager / | Inductor / | share of roofline |"]
    rows[0] += " limits |"
    rows.append("|---|---|---|---|---|---|---|---|")
    shown = (key for key in groups if key[2] == ALL or (key[1] > 1 and key[2] in SHOWN))
    order = sorted(shown, key=lambda key: (key[0], -key[1], SHOWN.index(key[2])))
    for host, threads, size_class in order:
        times = groups[host, threads, size_class]
        means = [_mean(times, name, backend) for name in ("eager", "inductor", "copy")]
        limits = [_mean(times, name, "limit") for name in ("eager", "inductor")]
        rows.append(
            f"| {host} | {threads} | {size_class} | {len(times)} "
            f"| {means[0]:.2f}x | {means[1]:.2f}x | {means[2]:.0%} "
            f"| {limits[0]:.2f}x, {limits[1]:.2f}x |"
        )
    hosts = {_host(record): record["machine"] for record in records}
    rows += [
        "",
        "The speeds are geometric means of eager's and Inductor's time over Hemstitch's, forward "
        "alone and with backward. A limit is the speed of a compiled call that copies the bytes "
        "that must move, and computes nothing. The hosts were: "
        + "; ".join(
            f"{host}: {about['cores']} cores, PyTorch {about['torch']}, {about['date'][:16]}"
            for host, about in hosts.items()
        )
        + ".",
    ]
    return rows


def _host(record: dict[str, Any]) -> str:
    about = record["machine"]
    return f"{about['processor'].split('(')[0].strip()}, {about['vectors']}"


def _mean(times: list[dict[str, float]], name: str, over: str) -> float:
    return geometric_mean(time[name] / time[over] for time in times if name in time)


def insert(text: str, rows: list[str], start: str = START, end: str = END) -> str:
    """Between the two markers."""
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    if not after:
        raise ValueError("the markers for the numbers are missing")
    return "\n".join([before + start, *rows, end]) + after


def write(page: Path, rows: list[str], start: str, end: str) -> None:
    """Between the two markers of a page."""
    page.write_text(insert(page.read_text("utf-8"), rows, start, end), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.table")
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--backend", default="hemstitch")
    arguments = parser.parse_args()
    records = [json.loads(path.read_text()) for path in arguments.results]
    write(PERFORMANCE, table(records, arguments.backend), START, END)


if __name__ == "__main__":
    main()
