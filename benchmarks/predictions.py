"""Measured beside predicted times of the kernels of `benchmarks.cases`, on one thread of this
processor: by the nominal machine model, and with the performance library's measurements.

python -m benchmarks.predictions [--bytes N]

Kernels are those of the nominal plan. `--bytes`: of arguments and results, for which rows are
chosen; several sizes with commas between. What the library lacks is measured, and kept, as with the
option `tune`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._dynamo

from benchmarks.cases import CASES, Case, bytes_of
from benchmarks.timing import geometric_mean
from hemstitch.backend import compile_with
from hemstitch.driver.compiler import Compiled
from hemstitch.ir.graph import Graph
from hemstitch.measure.performance_library import library
from hemstitch.measure.timing import seconds_of
from hemstitch.options import Options
from hemstitch.planning.planner import make_plan
from hemstitch.stitching.kernel_estimate import kernel_seconds
from hemstitch.targets.cpu.description import generic_cpu
from hemstitch.toolchain.jit import host_target

USUAL_BYTES = "262144,4194304,67108864"  # in L2, in L3, in memory


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of one kernel."""

    name: str
    measured: float
    nominal: float
    refined: float


def rows_for(case: Case, wanted: int) -> int:
    """So that arguments and results take about as many bytes."""

    def taken(rows: int) -> int:
        arguments = case.arguments(rows)
        return bytes_of((arguments, case.function(*arguments)))

    return max(1, wanted // max(1, taken(2) - taken(1)))


def lines(case: Case, rows: int) -> Iterator[Line]:
    machine = generic_cpu(threads=1, lanes=host_target().lanes)
    refined = replace(machine, measured=library())
    for graph in graphs_of(case, rows):
        for step in make_plan(graph, machine, Options()).kernels:
            kernel, hints = step.stitched.kernel, step.groups[0].hints
            yield Line(
                f"{case.name}, {rows} rows: {kernel.name}",
                seconds_of(step, threads=1),
                kernel_seconds(kernel, machine, hints),
                kernel_seconds(kernel, refined, hints),
            )


def graphs_of(case: Case, rows: int) -> list[Graph]:
    graphs: list[Graph] = []

    def observe(kind: str, compiled: Compiled) -> None:
        graphs.append(compiled.graph)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        return compile_with(gm, inputs, Options(strict=True), observe, plan_only=True)

    torch._dynamo.reset()
    torch.compile(case.function, backend=backend)(*case.arguments(rows))
    return graphs


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's."""
    return statistics.correlation(*(_ranks(values) for values in (first, second)))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [float(order.index(value)) for value in values]


def error(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """The factor by which a prediction is off, either way, as geometric mean."""
    ratios = (math.log(b / a) for a, b in zip(measured, predicted))
    return geometric_mean(math.exp(abs(ratio)) for ratio in ratios)


def summary(name: str, measured: Sequence[float], predicted: Sequence[float]) -> str:
    return (
        f"{name:8} rank correlation {rank_correlation(measured, predicted):.3f}, "
        f"off by a factor of {error(measured, predicted):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.predictions")
    parser.add_argument("--bytes", default=USUAL_BYTES)
    arguments = parser.parse_args()
    predictions = []
    for size in map(int, arguments.bytes.split(",")):
        for case in CASES:
            for line in lines(case, rows_for(case, size)):
                predictions.append(line)
                times = (line.measured, line.nominal, line.refined)
                print(f"{line.name:70}", *(f"{time * 1e6:10.1f}" for time in times), flush=True)
    measured = [line.measured for line in predictions]
    print(summary("nominal", measured, [line.nominal for line in predictions]))
    print(summary("measured", measured, [line.refined for line in predictions]))


if __name__ == "__main__":
    main()
