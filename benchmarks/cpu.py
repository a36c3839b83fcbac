"""Memory-intensive workloads on the processor: eager, Inductor and Hemstitch in one process.

python -m benchmarks.cpu [--sizes L2,L3,memory,named] [--only NAME] [--threads 1,2] [--json FILE]
                         [--quick] [--keep-pages]

Each case runs at sizes whose tensors fit L2, fit L3 and exceed it, forward and forward + backward.
`roof` is the share of the roofline: the time that a copy of as many bytes as the case must move
takes at the same size, over Hemstitch's time. `cores`: nanoseconds that a cache line takes from one
core to another, the more of before and after (benchmarks/cores.py). The limit in the summary is
what a backend reaches that makes such a copy in each pass and computes nothing
(benchmarks/limit.py).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import cores, machine
from benchmarks.calls import WRAPPERS, bytes_moved, compiled, prepared
from benchmarks.cases import CASES, Case, tensors
from benchmarks.limit import copy_of, copying
from benchmarks.timing import Function, Timing, geometric_mean, paired

BASELINES = ("eager", "inductor")
DIRECTIONS = ("forward", "both")
# Share of the cache that one set of tensors takes, and how many sets are rotated.
SIZE_CLASSES: dict[str, tuple[int, float, int]] = {
    "L2": (2, 0.6, 1),
    "L3": (3, 0.25, 2),
    "memory": (3, 0.7, 3),
}
# What a virtual machine reports is the L3 of all its neighbours too.
SURE_OF_L3 = 32 << 20
NAMED, FIXED_SETS = "named", 3  # cases whose size is their point
ROUNDS, QUICK_ROUNDS = 15, 5


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    case: str
    size_class: str
    direction: str
    threads: int
    shape: tuple[int, ...]  # of the first tensor
    bytes: int  # that must move


@dataclass(frozen=True, slots=True)
class Line:
    setting: Setting
    timings: dict[str, Timing]
    failures: dict[str, str]  # backend -> what went wrong
    between_cores: float  # nanoseconds

    def ratio(self, baseline: str, backend: str) -> float | None:
        if backend not in self.timings or baseline not in self.timings:
            return None
        return self.timings[backend].times_faster_than(self.timings[baseline])

    def over_the_best(self, backend: str) -> float | None:
        known = [ratio for name in BASELINES if (ratio := self.ratio(name, backend)) is not None]
        return min(known, default=None)

    def roof(self, backend: str) -> float | None:
        return self.ratio("copy", backend)

    def limit(self, baseline: str) -> float | None:
        """How many times faster than `baseline` a backend could be."""
        return self.ratio(baseline, "limit")


def settings(case: Case, threads: int, wanted: list[str]) -> Iterator[tuple[str, int, int]]:
    """(size class, rows, sets of arguments)"""
    if case.rows is not None:
        if NAMED in wanted:
            yield "as named", case.rows, FIXED_SETS
        return
    small, large = (bytes_moved(case, case.arguments(rows), "forward") for rows in (8, 16))
    for name, (level, share, sets) in SIZE_CLASSES.items():
        if name not in wanted:
            continue
        cache = machine.cache_bytes(level) * (threads if level == 2 else 1)
        if name == "L3":
            cache = min(cache, SURE_OF_L3)
        rows = max(1, int(cache * share) // ((large - small) // 8))
        yield name, rows // 8 * 8 or rows, sets


def measure(
    case: Case, size: tuple[str, int, int], direction: str, backends: list[str], rounds: int
) -> Line:
    size_class, rows, sets = size
    torch.manual_seed(0)
    rotation = [prepared(case, rows, direction) for _ in range(sets)]
    arguments = rotation[0][0]
    shape = tuple(tensors(arguments)[0].shape)
    moved = bytes_moved(case, arguments, direction)
    setting = Setting(case.name, size_class, direction, torch.get_num_threads(), shape, moved)
    functions: dict[str, Function] = {"copy": copy_of(moved, sets)}
    failures = {}
    wrap = WRAPPERS[direction]
    there = bytes_moved(case, arguments, "forward")
    limit = copying(copy_of(there, sets), copy_of(moved - there, sets))
    functions["limit"] = wrap(compiled(case.function, limit))
    for backend in backends:
        try:
            function = wrap(compiled(case.function, backend))
            function(*rotation[0])
        except Exception as error:  # a backend that fails is a result too
            failures[backend] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            functions[backend] = function
    before = cores.nanoseconds_between()
    timings = paired(functions, rotation, rounds)
    torch._dynamo.reset()
    return Line(setting, timings, failures, max(before, cores.nanoseconds_between()))


def number(value: float | None, form: str) -> str:
    return format(value, form) if value is not None else "-"


def text_of(line: Line, backends: list[str]) -> str:
    setting, ours = line.setting, backends[-1]
    columns = [
        f"{setting.case:46.46}",
        f"{setting.size_class:8}",
        f"{setting.direction:7}",
        f"{'x'.join(map(str, setting.shape)):16.16}",
        f"{setting.bytes / 1e6:7.1f} MB",
    ]
    for backend in backends:
        timing = line.timings.get(backend)
        columns.append(
            f"{timing.median * 1e6:9.1f} ±{timing.spread:4.0%}" if timing else "        failed"
        )
    columns += [f"{number(line.ratio(name, ours), '5.2f')}x" for name in BASELINES]
    columns += [f"{number(line.roof(ours), '4.0%')}", f"{line.between_cores:5.0f}"]
    return "  ".join(columns)


def heading(backends: list[str]) -> str:
    return "  ".join(
        [
            *(f"{'case':46}", f"{'size':8}", f"{'passes':7}", f"{'first tensor':16}", "must move "),
            *(f"{name + ', us':>15}" for name in backends),
            *("eager/", "induc/", "roof", "cores"),
        ]
    )


def summary(lines: list[Line], ours: str) -> Iterator[str]:
    for baseline in BASELINES:
        ratios = [ratio for line in lines if (ratio := line.ratio(baseline, ours)) is not None]
        limits = [limit for line in lines if (limit := line.limit(baseline)) is not None]
        yield f"geometric mean over {len(ratios)} lines, {ours} against {baseline}: " + (
            f"{geometric_mean(ratios):.2f}x faster (limit {geometric_mean(limits):.2f}x)"
        )
    roofs = [roof for line in lines if (roof := line.roof(ours)) is not None]
    yield f"geometric mean share of the roofline: {geometric_mean(roofs):.0%}"
    slower = [line for line in lines if (line.over_the_best(ours) or 1) < 1]
    yield f"slower than the faster of the two: {len(slower)}"
    for line in slower:
        setting = line.setting
        yield (
            f"  {line.over_the_best(ours):.2f}x  {setting.case}, {setting.size_class}, "
            f"{setting.direction}, {setting.threads} threads (limit {_limit(line):.2f}x)"
        )
    for line in lines:
        for backend, why in line.failures.items():
            setting = line.setting
            yield f"failed: {backend}, {setting.case}, {setting.size_class}: {why}"


def _limit(line: Line) -> float:
    return min(line.limit(baseline) or math.inf for baseline in BASELINES)


def record(lines: list[Line], arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": machine.describe(),
        "command": vars(arguments) | {"json": None},
        "lines": [
            asdict(line.setting)
            | {
                "microseconds": {k: round(v.median * 1e6, 2) for k, v in line.timings.items()},
                "spread": {k: round(v.spread, 3) for k, v in line.timings.items()},
                "failures": line.failures,
                "nanoseconds between cores": _known(line.between_cores),
            }
            for line in lines
        ],
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value)


def keep(lines: list[Line], arguments: argparse.Namespace) -> None:
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(record(lines, arguments), indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="hemstitch", help="the one compared with the others")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--threads", default=f"{torch.get_num_threads()}", metavar="1,2")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains it")
    sizes = ",".join([*SIZE_CLASSES, NAMED])
    parser.add_argument("--sizes", default=sizes, metavar=sizes)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--keep-pages", action="store_true", help="no page faults (glibc)")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.keep_pages:
        machine.keep_pages()
    backends = list(dict.fromkeys([*BASELINES, arguments.backend]))
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    lines: list[Line] = []
    for threads in map(int, arguments.threads.split(",")):
        torch.set_num_threads(threads)
        print(f"\n{threads} thread{'s' * (threads > 1)}\n{heading(backends)}")
        for case in (case for case in CASES if arguments.only in case.name):
            for size in settings(case, threads, arguments.sizes.split(",")):
                for direction in DIRECTIONS[: 2 if case.backward else 1]:
                    lines.append(measure(case, size, direction, backends, rounds))
                    print(text_of(lines[-1], backends), flush=True)
                    if arguments.json:  # after every line: a long run may be cut short
                        keep(lines, arguments)
    print("", *summary(lines, backends[-1]), sep="\n")


if __name__ == "__main__":
    main()
