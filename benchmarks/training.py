"""Whole models: a training step (forward, loss, backward) by eager, Inductor and Hemstitch in one
process. Takes the models of `benchmarks.models`, prints a table.

python -m benchmarks.training [--only bert,vit] [--autotune] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import machine
from benchmarks.models import MORE_WORKLOADS, WORKLOADS, Batch, Size, Training
from benchmarks.timing import Timing, geometric_mean, paired
from hemstitch.explain import explain

ROUNDS, DROPOUT = 9, 0.1
COMPILERS: Mapping[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
    "hemstitch": {"backend": "hemstitch"},
    "no loss": {"backend": "hemstitch", "options": {"loss_every": 0}},
}
MODELS = {**WORKLOADS, **MORE_WORKLOADS}
INDUCTORS, OURS = ("inductor", "autotune"), ("hemstitch", "no loss")


@dataclass(frozen=True, slots=True)
class Line:
    """One model. Seconds of a step by way, and of the first one, with all compilation in it."""

    model: str
    steps: dict[str, Timing]
    first: dict[str, float]
    kernels: int
    library_calls: int
    megabytes: float  # that kernels move in a step

    def rival(self) -> float:
        """The faster of Inductor's modes, or eager where neither was measured."""
        found = [self.steps[name].median for name in INDUCTORS if name in self.steps]
        return min(found, default=self.steps["eager"].median)


def step(model: nn.Module, batch: Batch) -> None:
    model.zero_grad(set_to_none=True)
    loss, _ = model(batch)
    loss.backward()


def measured(name: str, size: Size, ways: list[str]) -> Line:
    torch._dynamo.reset()
    torch.manual_seed(0)
    workload = MODELS[name]
    model, batch = Training(workload, size, DROPOUT).train(), workload.inputs(size)
    steps: dict[str, Callable[..., object]] = {"eager": partial(step, copy.deepcopy(model))}
    first = {}
    for way in ways:
        own = copy.deepcopy(model)
        own.compile(**COMPILERS[way])
        steps[way] = partial(step, own)
        start = time.perf_counter()
        steps[way](batch)
        first[way] = time.perf_counter() - start
    timings = paired(steps, [(batch,)], ROUNDS)
    report = explain(copy.deepcopy(model), batch, backward=True)
    moved = (report.bytes_read + report.bytes_written) / 1e6
    return Line(name, timings, first, report.kernel_count, len(report.library_calls), moved)


def text(line: Line, ways: list[str]) -> str:
    cells = [f"{line.model:8}"]
    for way in ("eager", *ways):
        timing = line.steps[way]
        cells.append(f"{timing.median * 1e3:9.1f} ms ±{timing.spread:3.0%}")
    for way in OURS:
        if way in line.steps:
            ours = line.steps[way].median
            cells.append(f"{line.steps['eager'].median / ours:5.2f}x {line.rival() / ours:5.2f}x")
    compile_times = " ".join(f"{way} {line.first[way]:.1f}" for way in ways)
    cells.append(f"{line.kernels:4} kernels {line.library_calls:4} calls {line.megabytes:8.1f} MB")
    return "  ".join([*cells, f"first: {compile_times} s"])


def record(line: Line) -> dict[str, object]:
    return {
        "model": line.model,
        "milliseconds": {way: timing.median * 1e3 for way, timing in line.steps.items()},
        "spread": {way: timing.spread for way, timing in line.steps.items()},
        "first_seconds": line.first,
        "kernels": line.kernels,
        "library_calls": line.library_calls,
        "megabytes": line.megabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.training", description=__doc__)
    parser.add_argument("--only", default=",".join(MODELS), metavar="NAMES")
    parser.add_argument("--size", choices=("tiny", "large"), default="large")
    parser.add_argument("--autotune", action="store_true", help="Inductor's max-autotune as well")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    ways = [way for way in COMPILERS if way != "autotune" or arguments.autotune]
    print(
        f"a training step, {arguments.size}, {torch.get_num_threads()} threads; faster than eager"
    )
    print("and than the faster of Inductor's modes, with the loss and without", flush=True)
    lines = []
    for name in arguments.only.split(","):
        lines.append(measured(name, arguments.size, ways))
        print(text(lines[-1], ways), flush=True)
    for way in OURS:
        over = [(x.steps["eager"].median, x.rival(), x.steps[way].median) for x in lines]
        eager = geometric_mean(e / ours for e, _, ours in over)
        rival = geometric_mean(r / ours for _, r, ours in over)
        print(f"geometric mean, {way}: {eager:.2f}x eager, {rival:.2f}x Inductor")
    if arguments.json:
        found = {"machine": machine.describe(), "lines": [record(line) for line in lines]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
