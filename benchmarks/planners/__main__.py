"""What each planner makes of whole models, and the planner without a part of it: kernels, bytes,
predicted time, and how long it plans; beside Inductor's kernels.

python -m benchmarks.planners [--models BERT,DIEN] [--modes infer,train] [--variants greedy,beam]
                              [--json FILE]
python -m benchmarks.planners --deep      a BERT of 24 layers, trained; a graph of 10,000 nodes
python -m benchmarks.planners --table     the file's numbers into docs/user/kernel-counts.md

Nothing is built or run, on a GPU that is not there. Predicted times are the machine model's
(`hemstitch.stitching.kernel_estimate`), for all kernels and no library call; so that they compare,
products of matrices are the library's in all variants.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import counting
from benchmarks.planners.programs import (
    MODELS,
    MODES,
    UNTRAINED,
    deep_bert,
    graphs_of,
    program,
    synthetic,
)
from benchmarks.table import COUNTS, write
from hemstitch.ir.graph import Graph, toposort
from hemstitch.options import Options
from hemstitch.planning.plan import LibraryStep, Plan
from hemstitch.planning.planner import make_plan
from hemstitch.stitching.kernel_estimate import kernel_seconds
from hemstitch.targets.gpu.description import generic_gpu

FOLDER = Path(__file__).resolve().parents[2]
RESULTS = FOLDER / "benchmarks" / "results" / "planners.json"
START, END = "<!-- planners: made by benchmarks/planners -->", "<!-- end of planners -->"
MEGABYTE = 1e6
MACHINE = generic_gpu()
INDUCTOR = "inductor"
BASE = "conservative"  # what the papers compare with: XLA's rule, nothing packed
# AStitch's ablation: our thread mapping alone, stitching without the global scheme, all; then the
# planners.
VARIANTS: Mapping[str, Options] = {
    BASE: Options(planner="conservative", pack=False, products=False),
    "conservative, packed": Options(planner="conservative", products=False),
    "not global": Options(planner="greedy", global_stitching=False, products=False),
    "greedy": Options(planner="greedy", products=False),
    "beam": Options(planner="beam", products=False),
    "ilp": Options(planner="ilp", products=False),
}
DEEP_VARIANTS = ("greedy", "beam", "ilp")


@dataclass(frozen=True, slots=True)
class Line:
    """`predicted_seconds` and `planning_seconds` are nothing for Inductor."""

    model: str
    mode: str
    variant: str
    kernels: int
    library_calls: int
    bytes: int  # of all kernels' parameters, each whole; Inductor's, by its own count
    predicted_seconds: float | None = None
    planning_seconds: float | None = None


def line_of(model: str, mode: str, variant: str, graphs: Sequence[Graph]) -> Line:
    options = VARIANTS[variant]
    machine = replace(MACHINE, has_grid_barrier=options.global_stitching)
    started = time.perf_counter()
    plans = [make_plan(graph, machine, options) for graph in graphs]
    seconds = time.perf_counter() - started
    return Line(
        *(model, mode, variant),
        sum(len(plan.kernels) for plan in plans),
        sum(isinstance(step, LibraryStep) for plan in plans for step in plan.steps),
        sum(map(_bytes, plans)),
        sum(map(_predicted, plans)),
        seconds,
    )


def _bytes(plan: Plan) -> int:
    steps = ((step, step.groups[0].hint) for step in plan.kernels)
    return sum(hint(t.bytes) for step, hint in steps for t in (*step.reads, *step.writes))


def _predicted(plan: Plan) -> float:
    return sum(
        kernel_seconds(step.stitched.kernel, MACHINE, step.groups[0].hints) for step in plan.kernels
    )


def inductor_line(model: str, mode: str) -> Line:
    counted = counting.line(counting.theirs(program(model, mode)))
    return Line(
        *(model, mode, INDUCTOR),
        counted["kernels"],
        counted["library_calls"],
        counting.moved(counted),
    )


def lines(models: Sequence[str], modes: Sequence[str], variants: Sequence[str]) -> Iterator[Line]:
    for model in models:
        for mode in modes:
            if mode == "train" and model in UNTRAINED:
                continue
            graphs = graphs_of(program(model, mode))
            for variant in variants:
                yield (
                    inductor_line(model, mode)
                    if variant == INDUCTOR
                    else line_of(model, mode, variant, graphs)
                )


def deep_lines(variants: Sequence[str]) -> Iterator[Line]:
    bert = deep_bert()
    cases = {f"{bert.name}, train": graphs_of(bert), "synthetic, infer": [synthetic()]}
    for name, graphs in cases.items():
        nodes = sum(len(toposort(graph.roots)) for graph in graphs)
        model, _, mode = name.rpartition(", ")
        for variant in variants:
            yield line_of(f"{model} ({nodes:,} nodes)", mode, variant, graphs)


def text_of(line: Line) -> str:
    return (
        f"{line.model:28} {line.mode:6} {line.variant:21} {line.kernels:5} kernels "
        f"{line.library_calls:5} calls {line.bytes / MEGABYTE:9.1f} MB "
        f"{_scaled(line.predicted_seconds, 1e6, '10.1f')} us predicted "
        f"{_scaled(line.planning_seconds, 1, '7.2f')} s planning"
    )


def _scaled(seconds: float | None, scale: float, form: str) -> str:
    return "-" if seconds is None else format(seconds * scale, form)


def table(record: Mapping[str, Any]) -> list[str]:
    made, found = record["about"], [Line(**line) for line in record["lines"]]
    base = {(line.model, line.mode): line for line in found if line.variant == BASE}
    rows = [
        "| model | mode | planner | kernels | share | calls | MB | predicted ms | planning s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in found:
        whole = base.get((line.model, line.mode))
        share = f"{line.kernels / whole.kernels:.0%}" if whole else "-"
        rows.append(
            f"| {line.model} | {line.mode} | {line.variant} | {line.kernels} | {share} "
            f"| {line.library_calls} | {line.bytes / MEGABYTE:.1f} "
            f"| {_scaled(line.predicted_seconds, 1e3, '.3f')} "
            f"| {_scaled(line.planning_seconds, 1, '.2f')} |"
        )
    about = f"{made['date']}, PyTorch {made['torch']}, Triton {made['triton']}, for an H200."
    return [*rows, "", about]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.planners")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--variants", help="of the planner, and inductor; all, without this")
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        write(COUNTS, table(json.loads(RESULTS.read_text())), START, END)
        return
    counting.with_stand_in("benchmarks.planners")
    counting.pretend()
    usual = DEEP_VARIANTS if arguments.deep else (*VARIANTS, INDUCTOR)
    variants = arguments.variants.split(",") if arguments.variants else usual
    models, modes = arguments.models.split(","), arguments.modes.split(",")
    found = []
    for line in deep_lines(variants) if arguments.deep else lines(models, modes, variants):
        found.append(line)
        print(text_of(line), flush=True)
    if arguments.json is not None:
        known = json.loads(arguments.json.read_text())["lines"] if arguments.deep else []
        about = {"about": counting.about(), "lines": [*known, *map(asdict, found)]}
        arguments.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
