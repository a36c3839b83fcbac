"""Results of a GPU for people: a report on the screen, tables for docs/user/performance.md, and
the constants of the latency evaluator."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.gpu import speed
from benchmarks.gpu.rank import rank_correlation
from benchmarks.gpu.worker import Line
from benchmarks.table import PERFORMANCE, insert

START = "<!-- GPU: made by python -m benchmarks.gpu --render -->"
END = "<!-- end of GPU -->"
EACH_START = "<!-- GPU, each program: made by python -m benchmarks.gpu --render -->"
EACH_END = "<!-- end of GPU, each program -->"
SHOWN = (speed.OURS, "inductor", "eager")
NAME = 90  # characters of a kernel's name that are shown
Record = dict[str, Any]


def write(path: Path, page: Path = PERFORMANCE) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    text = insert(text, table(record), START, END)
    page.write_text(insert(text, programs(record), EACH_START, EACH_END), encoding="utf-8")


def lines_of(record: Record, name: str) -> list[Line]:
    return [line for line in record["lines"].get(name, []) if "failure" not in line]


def failures_of(record: Record, name: str) -> list[Line]:
    return [line for line in record["lines"].get(name, []) if "failure" in line]


def _groups(lines: list[Line]) -> dict[tuple[str, str, str, bool], list[Line]]:
    groups: dict[tuple[str, str, str, bool], list[Line]] = defaultdict(list)
    for line in lines:
        if line["over"]:
            key = (line["size"], line["dtype"], line["direction"], line["graphs"])
            groups[key].append(line)
    return groups


def table(record: Record) -> list[str]:
    """Geometric means by size, type, passes and graphs; training; what is right; conditions."""
    lines = lines_of(record, "speed")
    names = list(dict.fromkeys(name for line in lines for name in speed.others(line)))
    heads = ["tensors", "type", "passes", "CUDA graphs", "cases"]
    heads += [*(f"{name} /" for name in names), "share of copy", "limit's share"]
    rows = [_row(heads), "|" + "---|" * len(heads)]
    for (size, dtype, direction, graphs), group in _groups(lines).items():
        means = speed.means(group)
        passes = {"forward": "forward", "both": "forward + backward"}[direction]
        cells = [size, dtype, passes, "yes" if graphs else "no", str(len(group))]
        cells += [f"{means[name]:.2f}x" if name in means else "-" for name in names]
        cells += [f"{means[name]:.0%}" if name in means else "-" for name in ("copy", "limit")]
        rows.append(_row(cells))
    rows += ["", *_training(record), *_conditions(record)]
    return rows


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def programs(record: Record) -> list[str]:
    """Microseconds of each program beyond L2, or as named, with CUDA graphs."""
    found: dict[tuple[str, str], dict[str, Line]] = defaultdict(dict)
    for line in lines_of(record, "speed"):
        if line["graphs"] and line["size"] in (speed.BEYOND, speed.NAMED):
            found[line["case"], line["direction"]][line["dtype"]] = line
    times = [f"{dtype}: {name}" for dtype in ("f32", "bf16") for name in SHOWN]
    heads = ["program", "passes", "copy", *times]
    rows = [_row(heads), "|" + "---|" * len(heads)]
    order = list(dict.fromkeys(case for case, _ in found))
    for case, direction in sorted(found, key=lambda key: (order.index(key[0]), key[1] == "both")):
        lines = found[case, direction]
        copy = fmean(line["microseconds"]["copy"] for line in lines.values())
        cells = [case, {"both": "forward + backward"}.get(direction, direction), f"{copy:.0f}"]
        for dtype in ("f32", "bf16"):
            known = lines.get(dtype, {}).get("microseconds", {})
            cells += [f"{known[name]:.0f}" if name in known else "-" for name in SHOWN]
        rows.append(_row(cells))
    return rows


def _training(record: Record) -> Iterator[str]:
    for line in lines_of(record, "training"):
        graphs = "with" if line["graphs"] else "without"
        times = ", ".join(f"{name} {time} ms" for name, time in line["milliseconds"].items())
        about = f"{line['layers']} layers of BERT-base, batch {line['batch']}, {line['dtype']}"
        yield f"Training step, {about}, {graphs} CUDA graphs: {times}."
        yield ""


def _conditions(record: Record) -> Iterator[str]:
    about = record["machine"]
    checked = lines_of(record, "correctness")
    right = sum(line["right"] for line in checked)
    yield "Geometric means of the others' times over Hemstitch's, and shares of the speed of a copy"
    yield "of the bytes that must move: a bare one, and one called through `torch.compile`."
    yield (
        f"{about['date'][:10]}, {about['device']}, driver {about.get('driver_version', '-')}, "
        f"PyTorch {about['torch']}, Triton {about['triton']}."
    )
    if checked:
        yield f"{right} of {len(checked)} results within twice eager's error."


def report(record: Record) -> Iterator[str]:
    """All that a person must look at."""
    wrong = [line for line in lines_of(record, "correctness") if not line["right"]]
    checked = len(lines_of(record, "correctness"))
    yield f"\ncorrectness: {len(wrong)} of {checked} results are wrong"
    for line in wrong:
        where = (line[key] for key in ("case", "rows", "width", "dtype", "direction"))
        errors = f"error {line['error']:.1e}, eager {line['eager']:.1e}"
        yield f"  {', '.join(map(str, where))}: {errors}"
        yield f"    {line.get('kernel', '')}"
    for line in lines_of(record, "sanitizer"):
        told = line.get("skipped") or ("clean" if line["clean"] else line["words"])
        yield f"sanitizer, {line['tool']}, {line['case']}: {told}"
    yield from _fit(record)
    yield from table(record)
    slow = speed.below(lines_of(record, "speed"))
    yield f"below {speed.LEAST}x of the best of the others: {len(slow)}"
    for line in slow:
        where = (line[key] for key in ("case", "size", "dtype", "direction"))
        graphs = "CUDA graph" if line["graphs"] else "no graph"
        yield f"  {min(speed.others(line).values()):.2f}x  {', '.join(where)}, {graphs}"
    yield from _kernels(record)
    yield from _failures(record)


def _kernels(record: Record) -> Iterator[str]:
    for line in lines_of(record, "kernels"):
        where = f"{line['case']}, [{line['batch']}, {line['sequence']}], {line['contender']}"
        yield f"kernels of a {where}: {line['microseconds']} us"
        for name, taken in line["kernels"]:
            yield f"  {taken:7.1f} us  {name[:NAME]}"


def _fit(record: Record) -> Iterator[str]:
    lines = lines_of(record, "fit")
    for line in lines:
        for name, value in line.get("values", {}).items():
            yield f"fit, {name}: {value:.4g}"
    pairs = [(line["estimate"], line["measured"]) for line in lines if "estimate" in line]
    if pairs:
        correlation = rank_correlation(pairs)
        yield f"estimates of {len(pairs)} kernels: rank correlation {correlation:.2f}"


def _failures(record: Record) -> Iterator[str]:
    for name in record["lines"]:
        for line in failures_of(record, name):
            yield f"failed: {name}, {line.get('job', '')}: {line['failure']}"
        for line in lines_of(record, name):
            for who, why in line.get("failures", {}).items() if name != "sanitizer" else ():
                yield f"failed: {name}, {line.get('case', '')}: {who}: {why}"
    for phase in record["phases"]:
        if phase["left out"]:
            yield f"no time for {len(phase['left out'])} of {phase['jobs']} jobs: {phase['slice']}"
