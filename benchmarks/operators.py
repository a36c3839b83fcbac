"""Every operator of PyTorch's OpInfo alone, eager against Hemstitch, forward and with gradients.

python -m benchmarks.operators --json build/operators.json
python -m benchmarks.operators --json build/operators.json --show
python -m benchmarks.operators --json build/operators.json --write

Samples of OpInfo are tiny: the largest of each operator is repeated until its tensors have a wanted
number of elements together (`benchmarks/enlarged.py`). What is known is not timed again, so that a
run can be stopped. One thread works, its own processor time counts, and the least of several
samples that take turns: what else the machine does then comes to neither way.

A call of any compiled function takes a while, longer with more arguments and results
(`benchmarks/operator_calls.py`), and with caches that are full of something else. Each row's own
call takes turns with it, beside as many elements as the row has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from benchmarks.enlarged import Operator, Program, enlarged, tensors_of
from benchmarks.machine import describe
from benchmarks.operator_calls import calls_alone, one_operation
from benchmarks.operator_table import ENOUGH, ONE, is_slow, ratios, show, write
from benchmarks.timing import paired

ELEMENTS = (262_144, 4_194_304, 4_096)  # about L2, beyond the caches, in L1
ROUNDS, ATTEMPTS = 5, 6
SAMPLE_SECONDS = 1e-3
LONG_SECONDS, FEW_ROUNDS = 20e-3, 3  # calls of which each is a sample, and how many
MOST_SWEPT = 262_144  # elements, so that sweeping takes no longer than a call
MEMORY_BYTES = 10 << 30  # beyond it an operator fails, and not the machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--elements", default=",".join(map(str, ELEMENTS)))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="measure what was slow once more")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="measure nothing, write the document")
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    known: dict[str, Any] = {"rows": {}}
    known["machine"] = {**describe(), "load": round(os.getloadavg()[0], 1)}
    if options.json.exists():
        known = json.loads(options.json.read_text())
    if not (options.show or options.write):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sizes = [int(size) for size in options.elements.split(",")]
            for _ in _measured(options.only, sizes, known, options.again):
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(known, indent=1))
    (write if options.write else show)(known)


def _measured(only: str, sizes: list[int], known: dict[str, Any], again: bool) -> Iterator[None]:
    """Fills rows. A row that ends the process says so in the next run."""
    rows = known["rows"]
    known_rows = {name for name, row in rows.items() if not (again and is_slow(row))}
    for size in sizes:
        for info in op_db:
            name = f"{info.formatted_name} {size}"
            wanted = torch.float32 in info.dtypes and re.search(only, info.formatted_name)
            if wanted and name not in known_rows:
                if name not in rows:
                    rows[name] = {"left out": "the process ended"}
                    yield
                rows[name] = _row(info, size)
                yield


def _row(info: Any, size: int) -> dict[str, Any]:
    """Seconds by pass, or why there are none."""
    try:
        operator = enlarged(info, size)
    except Exception as error:  # of eager: the operator is left out
        return {"left out": f"{type(error).__name__}: {error}"[:200]}
    shapes = [list(tensor.shape) for tensor in operator.tensors]
    start = time.perf_counter()
    try:
        times = _times(operator)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:200], "shapes": shapes}
    return {**times, "shapes": shapes, "took": round(time.perf_counter() - start, 2)}


def _times(operator: Operator) -> dict[str, Any]:
    swept = torch.zeros(min(sum(tensor.numel() for tensor in operator.tensors), MOST_SWEPT))
    alone = calls_alone(operator)
    torch._dynamo.reset()
    ways, calls = _ways(operator.program), _ways(alone.program)
    calls = {f"{name} alone": _sweeping(way, swept) for name, way in calls.items()}
    calls[ONE] = _sweeping(one_operation(alone), swept)
    runs = {name: partial(way, *operator.tensors) for name, way in ways.items()}
    runs |= {name: partial(way, *alone.tensors) for name, way in calls.items()}
    times: dict[str, Any] = {"forward": _least(runs)}
    leaves, others = _leaves(operator), _leaves(alone)
    if any(result.requires_grad for result in tensors_of(operator.program(*leaves))):
        runs = {name: partial(_step(way), *leaves) for name, way in ways.items()}
        runs |= {name: partial(_step(way, swept), *others) for name, way in calls.items()}
        times["step"] = _least(runs)
    return times


def _ways(program: Program) -> dict[str, Program]:
    called, ours = (
        torch.compile(program, backend=backend, dynamic=False) for backend in ("eager", "hemstitch")
    )
    return {"eager": program, "called": called, "ours": ours}


def _leaves(operator: Operator) -> list[torch.Tensor]:
    return [t.requires_grad_(trains) for t, trains in zip(operator.tensors, operator.trained)]


def _sweeping(program: Program, swept: torch.Tensor) -> Program:
    def call(*tensors: torch.Tensor) -> Any:
        swept.add_(1)
        return program(*tensors)

    return call


def _step(program: Program, swept: torch.Tensor | None = None) -> Program:
    def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        results = [r for r in tensors_of(program(*tensors)) if r.requires_grad]
        leaves = [t for t in tensors if t.requires_grad]
        seeds = [torch.ones_like(result) for result in results]
        if swept is not None:
            swept.add_(1)
        gradients = torch.autograd.grad(results, leaves, seeds, allow_unused=True)
        return [gradient for gradient in gradients if gradient is not None]

    return step


def _least(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Again where ours seems slow: the least of more samples is nearer to the truth. What takes
    long is no better known for calls that find the caches warm."""
    least = {name: _thread_clock(run) for name, run in runs.items()}  # compiles
    is_long = _thread_clock(runs["eager"]) > LONG_SECONDS
    for _ in range(ATTEMPTS):
        samples = _single(runs) if is_long else _repeated(runs)
        least = {name: min(least[name], *times) for name, times in samples.items()}
        if max(ratios(least)) > ENOUGH:
            break
    return least


def _single(runs: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    rounds = [{name: _thread_clock(run) for name, run in runs.items()} for _ in range(FEW_ROUNDS)]
    return {name: [samples[name] for samples in rounds] for name in runs}


def _repeated(runs: Mapping[str, Callable[[], object]]) -> dict[str, tuple[float, ...]]:
    timings = paired(runs, [()], ROUNDS, _thread_clock, SAMPLE_SECONDS)
    return {name: timing.samples for name, timing in timings.items()}


def _thread_clock(run: Callable[[], object]) -> float:
    """Seconds of the processor that this thread takes for `run`."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


if __name__ == "__main__":
    main()
