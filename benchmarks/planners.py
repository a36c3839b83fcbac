"""What each planner makes of whole models: kernels, bytes, predicted time, and how long it plans.

python -m benchmarks.planners [--models bert,dien] [--modes infer,train] [--planners greedy,beam]
                              [--machine gpu|cpu] [--deep] [--json FILE] [--table]

Nothing is built or run: models are traced with fake tensors, and plans are made for a machine that
need not be there. `--deep`: instead, the training graphs of a BERT of 24 layers and a synthetic
graph of 10,000 nodes. `--table`: the file's numbers into docs/performance.md. Predicted times are
the machine model's (`hemstitch.stitch.estimate`), for all kernels and no library call; so that they
compare, products of matrices are the library's.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import machine as this_machine
from benchmarks.models import WORKLOADS, Training, Workload, hugging_face
from benchmarks.table import insert
from hemstitch.backend import compile_with
from hemstitch.compile import Compiled
from hemstitch.fusion.plan import LibraryStep, Plan
from hemstitch.fusion.planner import make_plan
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, LibraryCall, Node, Op, Operand, Output, toposort
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.options import CHOICES, Options
from hemstitch.stitch.estimate import kernel_seconds
from hemstitch.stitch.machine import Machine, generic_cpu, generic_gpu

RESULTS = Path(__file__).parent / "results" / "planners.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
START, END = "<!-- planners: made by benchmarks/planners.py -->", "<!-- end of planners -->"
MODELS = ("bert", "transformer", "dien", "asr", "crnn")  # those of both papers
PLANNERS = tuple(name for name in CHOICES["planner"] if name != "auto")
MACHINES: dict[str, Machine] = {"gpu": generic_gpu(), "cpu": generic_cpu(threads=2, lanes=16)}
DEEP_LAYERS, SYNTHETIC_NODES = 24, 13_400  # of which 10,000 are needed
MEGABYTE = 1e6
Program = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments


@dataclass(frozen=True, slots=True)
class Line:
    model: str
    mode: str
    planner: str
    nodes: int
    kernels: int
    library_calls: int
    bytes: int  # of all kernels' parameters
    predicted_seconds: float
    planning_seconds: float


def graphs_of(
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]], backward: bool
) -> list[Graph]:
    """What torch.compile hands to the compiler. `make` is called where tensors are fake."""
    found: list[Graph] = []

    def observe(kind: str, compiled: Compiled) -> None:
        found.append(compiled.graph)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        options = Options(planner="conservative", strict=True)
        return compile_with(gm, inputs, options, observe, plan_only=True)

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(backward):
        function, arguments = make()
        result = torch.compile(function, backend=backend)(*arguments)
        if backward:
            result[0].backward()
    return found


def training(workload: Workload) -> Program:
    return Training(workload, "large", dropout=0.1), (workload.inputs("large"),)


def inference(workload: Workload) -> Program:
    given = workload.inputs("large")
    arguments = {name: value for name, value in given.items() if not name.startswith("label")}
    model = workload.model("large", 0.0).eval()
    return lambda: model(**arguments), ()


def deep_bert() -> Program:
    model = hugging_face.bert(hidden=256, heads=4, layers=DEEP_LAYERS, dropout=0.1)
    workload = WORKLOADS["bert"]
    deep = Workload(lambda size, dropout: model, workload.inputs, workload.loss)
    return Training(deep, "large", dropout=0.1), (workload.inputs("large"),)


def synthetic(count: int, seed: int = 0) -> Graph:
    """Elementwise nodes that read one or two of the last few, a reduction now and then, and a
    library call for every 40 nodes."""
    choose, builder = random.Random(seed), Builder()
    shape, strides = (256, 512), contiguous_strides((256, 512))
    inputs = [builder.input(f"x{n}", n, shape, DType.F32, strides) for n in range(4)]
    recent: list[Node] = list(inputs)
    operand = Operand(0)
    made = 0
    while made < count:
        first, second = choose.sample(recent[-8:], 2) if len(recent) > 1 else recent * 2
        kind = choose.random()
        if kind < 1 / 40:
            call = LibraryCall("f", None, (operand,), (), (strides,), ((first.type, strides),))
            new = builder.library(call, [first])[0] or first
            made += 2
        elif kind < 1 / 10:
            total = builder.make(Op.SUM, first, attr=(1,))
            new = builder.make(
                Op.SUB, second, builder.broadcast(builder.reshape(total, (256, 1)), shape)
            )
            made += 4
        elif kind < 0.4:
            new = builder.make(Op.EXP, first)
            made += 1
        else:
            new = builder.make(choose.choice((Op.ADD, Op.MUL, Op.MAXIMUM)), first, second)
            made += 1
        recent.append(new)
    outputs = tuple(Output(value, strides) for value in recent[-8:])
    return Graph(tuple(inputs), outputs)


def line_of(model: str, mode: str, planner: str, graphs: Sequence[Graph], machine: Machine) -> Line:
    started = time.perf_counter()
    plans = [
        make_plan(graph, machine, Options(planner=planner, products=False)) for graph in graphs
    ]
    seconds = time.perf_counter() - started
    return Line(
        *(model, mode, planner),
        sum(len(toposort(graph.roots)) for graph in graphs),
        sum(len(plan.kernels) for plan in plans),
        sum(isinstance(step, LibraryStep) for plan in plans for step in plan.steps),
        sum(map(_bytes, plans)),
        sum(_predicted(plan, machine) for plan in plans),
        seconds,
    )


def _bytes(plan: Plan) -> int:
    steps = ((step, step.groups[0].hint) for step in plan.kernels)
    return sum(hint(t.bytes) for step, hint in steps for t in (*step.reads, *step.writes))


def _predicted(plan: Plan, machine: Machine) -> float:
    return sum(
        kernel_seconds(step.stitched.kernel, machine, step.groups[0].hints) for step in plan.kernels
    )


def lines(arguments: argparse.Namespace) -> Iterator[Line]:
    machine = MACHINES[arguments.machine]
    for model, mode, graphs in _cases(arguments):
        for planner in arguments.planners.split(","):
            yield line_of(model, mode, planner, graphs, machine)


def _cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str, list[Graph]]]:
    if arguments.deep:
        yield f"bert, {DEEP_LAYERS} layers", "train", graphs_of(deep_bert, backward=True)
        yield "synthetic", "infer", [synthetic(SYNTHETIC_NODES)]
        return
    for model in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            make = partial(training if mode == "train" else inference, WORKLOADS[model])
            yield model, mode, graphs_of(make, backward=mode == "train")


def text_of(line: Line) -> str:
    return (
        f"{line.model:18} {line.mode:6} {line.planner:13} {line.nodes:6} nodes "
        f"{line.kernels:5} kernels {line.library_calls:5} calls {line.bytes / MEGABYTE:9.1f} MB "
        f"{line.predicted_seconds * 1e6:10.1f} us predicted {line.planning_seconds:7.2f} s planning"
    )


def table(found: Sequence[Line]) -> list[str]:
    rows = [
        "| model | mode | planner | kernels | of conservative | MB | predicted ms | planning s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in found:
        base = next(
            each
            for each in found
            if (each.model, each.mode, each.planner) == (line.model, line.mode, PLANNERS[0])
        )
        rows.append(
            f"| {line.model} | {line.mode} | {line.planner} | {line.kernels} "
            f"| {line.kernels / base.kernels:.0%} | {line.bytes / MEGABYTE:.1f} "
            f"| {line.predicted_seconds * 1e3:.3f} | {line.planning_seconds:.2f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.planners")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--modes", default="infer,train")
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--machine", choices=MACHINES, default="gpu")
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        record = json.loads(RESULTS.read_text())
        found = [Line(**line) for line in record["lines"]]
        PAGE.write_text(insert(PAGE.read_text(), table(found), START, END))
        return
    found = []
    for line in lines(arguments):
        found.append(line)
        print(text_of(line), flush=True)
    if arguments.json is not None:
        about = {"machine": this_machine.describe(), "lines": [asdict(line) for line in found]}
        arguments.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
