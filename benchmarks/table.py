"""Brings the results of `benchmarks.cpu` into the README. Takes its JSON files, of one machine,
and rewrites what stands between the two markers.

python -m benchmarks.table benchmarks/results/cpu-*.json
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.timing import geometric_mean

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- numbers: made by benchmarks/table.py -->", "<!-- end of numbers -->"


def table(record: dict[str, Any], backend: str) -> list[str]:
    """Geometric means by size class and passes, and the conditions they hold under."""
    groups: dict[tuple[int, str, str], list[dict[str, float]]] = defaultdict(list)
    for line in record["lines"]:
        if backend in line["microseconds"]:
            key = (line["threads"], line["size_class"], line["direction"])
            groups[key].append(line["microseconds"])
    passes = {"forward": "forward", "both": "forward + backward"}
    rows = ["| threads | tensors fit | passes | cases | eager / | Inductor / | share of roofline |"]
    rows[0] += " limits |"
    rows.append("|---|---|---|---|---|---|---|---|")
    for (threads, size_class, direction), times in groups.items():
        means = [_mean(times, name, backend) for name in ("eager", "inductor", "copy")]
        limits = [_mean(times, name, "limit") for name in ("eager", "inductor")]
        rows.append(
            f"| {threads} | {size_class} | {passes[direction]} | {len(times)} "
            f"| {means[0]:.2f}x | {means[1]:.2f}x | {means[2]:.0%} "
            f"| {limits[0]:.2f}x, {limits[1]:.2f}x |"
        )
    about = record["machine"]
    rows += [
        "",
        "Geometric means of eager's and Inductor's time over Hemstitch's. Limits: over the time of "
        "a compiled call that copies the bytes that must move and computes nothing. "
        f"{about['date'][:10]}, "
        f"{about['processor']}, {about['cores']} cores, {about['vectors']}, "
        f"PyTorch {about['torch']}.",
    ]
    return rows


def _mean(times: list[dict[str, float]], name: str, over: str) -> float:
    return geometric_mean(time[name] / time[over] for time in times if name in time)


def insert(text: str, rows: list[str], start: str = START, end: str = END) -> str:
    """Between the two markers."""
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    if not after:
        raise ValueError("the markers for the numbers are missing")
    return "\n".join([before + start, *rows, end]) + after


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.table")
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--backend", default="hemstitch")
    arguments = parser.parse_args()
    records = [json.loads(path.read_text()) for path in arguments.results]
    record = records[0] | {"lines": [line for each in records for line in each["lines"]]}
    text = README.read_text(encoding="utf-8")
    README.write_text(insert(text, table(record, arguments.backend)), encoding="utf-8")


if __name__ == "__main__":
    main()
