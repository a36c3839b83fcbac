"""The table of whole models: prints a line for each model and way, then what they come to. Takes
the command line of `benchmarks.training` and `benchmarks.inference`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

import torch

from benchmarks import machine
from benchmarks.rivals import ours, problem
from benchmarks.rivals.ours import WITHOUT
from benchmarks.rivals.problem import ANSWERING, MODELS
from benchmarks.rivals.turns import Measured, Setting, measured, versions
from benchmarks.rivals.ways import (
    AUTOTUNE,
    EAGER,
    FROZEN,
    INDUCTOR,
    INFERENCE,
    NO_LOSS,
    OURS,
    TRAINING,
    Way,
)
from benchmarks.table import MEASUREMENTS, PERFORMANCE, write
from benchmarks.timing import Timing, geometric_mean

ROUNDS = 9
WAYS: Mapping[bool, Mapping[str, Way]] = {True: TRAINING, False: INFERENCE}
VARIANTS = (OURS, NO_LOSS, FROZEN)
OPERATIONS, RATE = "operations", "operations_per_second"
FAR = 1e-4  # from eager's results, relative to their norm: worth a mention
HEADING = (
    *("model", "way", "ms", "spread", "eager /", "peak MB", "between steps", "kernels + calls"),
    *("MB moved", "by calls", "first s", "apart from eager"),
)


def rows(found: Measured) -> Iterator[tuple[str, ...]]:
    for way in (*found.timings, *found.failures):
        if way in found.failures:
            yield (found.model, way, f"failed: {found.failures[way]}"[:300])
            continue
        once, timing = found.once[way], found.timings[way]
        yield (
            *(found.model, way),
            f"{timing.median * 1e3:.1f}",
            f"{timing.spread:.0%}",
            f"{speed(found, way, EAGER):.2f}x" if EAGER in found.timings else "-",
            *(f"{once['peak']:.0f}", f"{once['held']:.0f}"),
            f"{once['kernels']} + {once['library_calls']}" if "kernels" in once else "-",
            _moved(once),
            f"{once['library_megabytes']:.1f}" if "library_megabytes" in once else "-",
            f"{once['first']:.1f}",
            f"{once['distance']:.0e}" if not once["distance"] <= FAR else "",
        )


def _moved(once: Mapping[str, float]) -> str:
    if "megabytes" not in once:
        return "-"
    without = once.get(f"megabytes{WITHOUT}", once["megabytes"])
    text = f"{once['megabytes']:.1f}"
    return text if without == once["megabytes"] else f"{text} ({without:.1f})"


def speed(found: Measured, way: str, other: str) -> float:
    """How many times faster than the other."""
    return found.timings[way].times_faster_than(found.timings[other])


def summary(lines: Sequence[Measured], ways: Sequence[str]) -> Iterator[str]:
    lines = [line for line in lines if line.model in MODELS]
    for mine, other, faster, peak, count in _means(lines, ways):
        yield (
            f"{mine}: {faster:.2f}x as fast as {other}, {peak:.2f} of its peak memory "
            f"({count} models)"
        )
    yield from _beside_the_better(lines)
    yield from _limits(lines, ways)
    for what in ("kernels", "library_calls", "megabytes"):
        shares = [
            line.once[OURS][f"{what}{WITHOUT}"] / max(1, line.once[INDUCTOR][what])
            for line in lines
            if INDUCTOR in line.once and _is_counted(line)
        ]
        if shares:
            share = geometric_mean(each for each in shares if each > 0)
            yield f"{what.replace('_', ' ')}, without matmuls: {share:.2f} of Inductor's"
    yield from _moved_in_all(lines)


def _means(
    lines: Sequence[Measured], ways: Sequence[str]
) -> Iterator[tuple[str, str, float, float, int]]:
    """Geometric means over the models for which both were measured: of speed, of peak memory."""
    for mine in (way for way in VARIANTS if way in ways):
        for other in (way for way in ways if way not in VARIANTS):
            both = [x for x in lines if mine in x.timings and other in x.timings]
            if both:
                faster = geometric_mean(speed(line, mine, other) for line in both)
                peak = geometric_mean(_ratio(line, mine, other, "peak") for line in both)
                yield mine, other, faster, peak, len(both)


def overview(lines: Sequence[Measured], ways: Sequence[str]) -> list[str]:
    """A row for each model, then the means: what a user decides by."""
    shown = [way for way in ways if way != NO_LOSS]
    beside = (EAGER, INDUCTOR, OURS)
    heads = ("model", *(f"{way}, ms" for way in shown), "spread", "eager /", "inductor /")
    heads += (f"peak MB: {', '.join(beside)}", f"first s: {', '.join(beside[1:])}")
    rows = [_joined(heads), _joined("---" for _ in heads)]
    for line in lines:
        timed = {way: timing for way, timing in line.timings.items() if way in shown}
        spread = max(timing.spread for timing in timed.values())
        cells = [line.model]
        cells += [f"{timed[way].median * 1e3:.1f}" if way in timed else "-" for way in shown]
        cells.append(f"{spread:.0%}")
        cells += [
            f"{speed(line, OURS, way):.2f}x" if {OURS, way} <= timed.keys() else "-"
            for way in (EAGER, INDUCTOR)
        ]
        cells.append(", ".join(_once(line, way, "peak", ".0f") for way in beside))
        cells.append(", ".join(_once(line, way, "first", ".1f") for way in beside[1:]))
        rows.append(_joined(cells))
    heads = ("way", "beside", "times as fast", "peak memory", "models")
    rows += ["", _joined(heads), _joined("---" for _ in heads)]
    for mine, other, faster, peak, count in _means(
        [line for line in lines if line.model in MODELS], shown
    ):
        rows.append(_joined((mine, other, f"{faster:.2f}x", f"{peak:.2f}", str(count))))
    return rows


def _once(line: Measured, way: str, what: str, form: str) -> str:
    return format(line.once[way][what], form) if way in line.once else "-"


def _moved_in_all(lines: Sequence[Measured]) -> Iterator[str]:
    """As what is timed runs: kernels and library calls together, and those beyond what Inductor's
    calls move, who has kernels for everything else."""
    totals: list[float] = []
    beyond: dict[str, float] = {}
    for line in lines:
        mine, theirs = (line.once.get(way, {}) for way in (OURS, INDUCTOR))
        if {"megabytes", "library_megabytes"} <= mine.keys() & theirs.keys():
            in_all = mine["megabytes"] + mine["library_megabytes"]
            totals.append(in_all / (theirs["megabytes"] + theirs["library_megabytes"]))
            beyond[line.model] = (in_all - theirs["library_megabytes"]) / theirs["megabytes"]
    if totals:
        most = max(beyond, key=beyond.__getitem__)
        half = sum(share <= 0.5 for share in beyond.values())
        yield f"megabytes of kernels and calls: {geometric_mean(totals):.2f} of Inductor's"
        yield (
            f"megabytes beyond those of Inductor's calls: {fmean(beyond.values()):.2f} of what "
            f"Inductor's kernels move (arithmetic mean; at the most {beyond[most]:.2f}, {most}; "
            f"at most half for {half} of {len(beyond)} models)"
        )


def _beside_the_better(lines: Sequence[Measured]) -> Iterator[str]:
    """Of Inductor's two modes, model by model."""
    modes = (INDUCTOR, AUTOTUNE)
    for mine in VARIANTS:
        faster = {
            line.model: min(speed(line, mine, mode) for mode in modes)
            for line in lines
            if {mine, *modes} <= line.timings.keys()
        }
        if faster:
            mean, least = geometric_mean(faster.values()), min(faster, key=faster.__getitem__)
            yield (
                f"{mine}: {mean:.2f}x as fast as the better of Inductor's modes, "
                f"at the least {faster[least]:.2f}x ({least}; {len(faster)} models)"
            )


def _limits(lines: Sequence[Measured], ways: Sequence[str]) -> Iterator[str]:
    """How much faster a way would be if all but its matmuls and convolutions took no time."""
    counted = [line for line in lines if RATE in line.once.get(OURS, {})]
    for way in ways:
        ratios = [
            line.timings[way].median * line.once[OURS][RATE] / line.once[OURS][OPERATIONS]
            for line in counted
            if way in line.timings
        ]
        if ratios:
            faster = geometric_mean(ratios)
            yield f"matmuls alone: {faster:.2f}x as fast as {way} ({len(ratios)} models)"


def _is_counted(line: Measured) -> bool:
    return f"kernels{WITHOUT}" in line.once.get(OURS, {})


def _ratio(line: Measured, mine: str, other: str, name: str) -> float:
    return float(line.once[mine][name] / line.once[other][name])


def record(
    lines: Sequence[Measured], setting: Setting, earlier: Mapping[str, str] = MappingProxyType({})
) -> dict[str, object]:
    """`earlier`: versions of what measured the lines before; this run may have fewer rivals."""
    about = {**earlier, **machine.describe()} | versions(
        setting.python, _packages(WAYS[setting.training])
    )
    what = {
        "training": setting.training,
        "autocast": setting.autocast,
        "size": setting.size,
        "threads": setting.threads,
    }
    return {"machine": about, **what, "lines": [asdict(line) for line in lines]}


def known_versions(path: Path | None) -> dict[str, str]:
    if path is None or not path.exists():
        return {}
    about = json.loads(path.read_text(encoding="utf-8"))
    rivals = _packages(WAYS[about["training"]])
    return {name: about["machine"][name] for name in rivals if name in about["machine"]}


def known(path: Path | None) -> list[Measured]:
    """What an earlier run has left there."""
    if path is None or not path.exists():
        return []
    lines = json.loads(path.read_text(encoding="utf-8"))["lines"]
    return [
        Measured(
            line["model"],
            {way: Timing(tuple(each["samples"])) for way, each in line["timings"].items()},
            line["once"],
            line["failures"],
        )
        for line in lines
    ]


def _packages(ways: Mapping[str, Way]) -> list[str]:
    return sorted({package for way in ways.values() for package in way.packages})


def parse(kind: str, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"benchmarks.{kind}", description=description)
    names = ",".join(MODELS if kind == "training" else ANSWERING)
    parser.add_argument("--only", default=names, metavar="NAMES")
    parser.add_argument("--size", choices=("tiny", "large"), default="large")
    parser.add_argument("--autotune", action="store_true", help="Inductor's max-autotune as well")
    parser.add_argument("--autocast", action="store_true", help="to bf16, beside PyTorch's ways")
    parser.add_argument("--rivals", default=sys.executable, metavar="PYTHON", help="that has them")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="its other models stay in it")
    parser.add_argument("--table", action="store_true", help="that file into docs/user")
    return parser.parse_args()


def ways_of(training: bool, autotune: bool, python: str, autocast: bool = False) -> dict[str, Way]:
    """Without those whose packages are not there, which is said. Only PyTorch has `autocast`."""
    chosen = {name: way for name, way in WAYS[training].items() if name != AUTOTUNE or autotune}
    if autocast:
        chosen = {name: way for name, way in chosen.items() if not way.packages}
    there = versions(python, _packages(chosen))
    for name, way in list(chosen.items()):
        if gone := [package for package in way.packages if package not in there]:
            print(f"without {name}: {', '.join(gone)} not installed in {python}")
            del chosen[name]
    return chosen


def counted(line: Measured, setting: Setting) -> Measured:
    """With what Hemstitch's kernels are, where it was measured."""
    if OURS in line.once:
        made = problem.made(line.model, setting.size, setting.training, autocast=setting.autocast)
        line.once[OURS] |= ours.counts(made)
        if not setting.autocast:  # the rate is that of f32
            line.once[OURS] |= {
                OPERATIONS: problem.operations(made),
                RATE: ours.operations_per_second(),
            }
    return line


def page(path: Path) -> None:
    """The file's numbers into two pages: a row for each model, and for each way of each model."""
    write(PERFORMANCE, short(path), *marks(path))
    write(MEASUREMENTS, full(path), *marks(path))


def short(path: Path) -> list[str]:
    lines = known(path)
    return [*overview(lines, _ways(lines)), "", conditions(path)]


def full(path: Path) -> list[str]:
    lines = known(path)
    text = [_joined(HEADING), _joined("---" for _ in HEADING)]
    text += [_joined(row) for line in lines for row in rows(line)]
    text += ["", *(f"- {each}" for each in summary(lines, _ways(lines))), "", conditions(path)]
    return text


def _ways(lines: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(way for line in lines for way in line.timings))


def marks(path: Path) -> tuple[str, str]:
    about = json.loads(path.read_text(encoding="utf-8"))
    kind = "training" if about["training"] else "inference"
    name = f"{kind} under autocast" if about["autocast"] else kind
    return f"<!-- {name}: made by benchmarks/{kind}.py -->", f"<!-- end of {name} -->"


def conditions(path: Path) -> str:
    about = json.loads(path.read_text(encoding="utf-8"))
    host = about["machine"]
    said = [f"{host['processor']}, {host['vectors']}", f"{about['threads']} threads"]
    libraries = ("torch", *_packages(WAYS[about["training"]]))
    said += [f"{name} {host[name]}" for name in libraries if name in host]
    return ", ".join([*said, host["date"][:10]]) + "."


def main(kind: str, description: str | None) -> None:
    """`kind`: "training" or "inference"."""
    arguments = parse(kind, description)
    if arguments.table:
        page(arguments.json)
        return
    training, threads = kind == "training", torch.get_num_threads()
    setting = Setting(
        *(training, arguments.size, threads, arguments.rounds),
        *(arguments.rivals, arguments.autocast),
    )
    ways = ways_of(training, arguments.autotune, arguments.rivals, arguments.autocast)
    print(f"{kind}, {setting.size}, {threads} threads\n")
    print(_joined(HEADING), _joined("---" for _ in HEADING), sep="\n", flush=True)
    names = arguments.only.split(",")
    lines = [line for line in known(arguments.json) if line.model not in names]
    earlier = known_versions(arguments.json)
    for name in names:
        lines.append(counted(measured(name, ways, setting), setting))
        print(*map(_joined, rows(lines[-1])), sep="\n", flush=True)
        if arguments.json:  # after every model: a long run may be cut short
            found = json.dumps(record(lines, setting, earlier), indent=1)
            arguments.json.write_text(found + "\n", encoding="utf-8")
    print("", *summary(lines, list(ways)), sep="\n")


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
