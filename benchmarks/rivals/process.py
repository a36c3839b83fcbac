"""One way in a process of its own. Takes a job (what is run, by which module), gives first what is
measured once, then the seconds of a step, as often as it has its turn.

How memory is measured: the process first does all of it at the tiny size, where results are also
compared with eager's. So compilers are loaded and have compiled before the resident set is looked
at, and only then is the model made. What a step takes above that has the weights, gradients, arenas
and copies of weights in it, and what a compiler keeps of this model.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.worker import READY, Job, Line
from benchmarks.rivals import compilers, memory, problem
from benchmarks.rivals.problem import Made, Prepared

TURN_SECONDS = 0.2  # a turn has as many steps as last that long
PAUSE_SECONDS = 0.02  # the threads of the last process may still be looking for work

Prepare = Callable[[Made], Prepared]


def run(job: Job) -> Iterator[Line]:
    torch.set_num_threads(job["threads"])
    module = importlib.import_module(f"benchmarks.rivals.{job['module']}")
    once, step = _measured_once(job, lambda workload: module.prepare(workload, **job["settings"]))
    yield {READY: True, **once}
    step()
    repeats = math.ceil(TURN_SECONDS / _seconds(step, 1))
    while True:
        time.sleep(PAUSE_SECONDS)
        yield {READY: True, "seconds": _seconds(step, repeats)}


def _measured_once(job: Job, prepare: Prepare) -> tuple[Line, Callable[[], object]]:
    training, unanswered = job["training"], job["unanswered"]
    make = partial(problem.made, job["model"], training=training, autocast=job["autocast"])
    off = _distance(partial(make, "tiny", dropout=0.0), unanswered, prepare)
    torch._dynamo.reset()
    before = memory.resident()
    workload = make(job["size"])
    start = time.perf_counter()
    prepared = prepare(workload)
    result = prepared.step()
    first = time.perf_counter() - start
    if not training:  # without dropout, this size compares too
        exact = compilers.prepare(make(job["size"]))
        off = max(off, _apart(prepared.results(result), exact, unanswered))
        del exact
    del result, workload
    prepared.step()
    measurements = {
        "held": memory.resident() - before,
        "peak": memory.peak(prepared.step) - before,
        "first": first,
        "distance": off,
    }
    return measurements | prepared.counts(), prepared.step


def _distance(make: Callable[[], problem.Made], unanswered: list[str], prepare: Prepare) -> float:
    """From eager's results."""
    exact = compilers.prepare(make())
    prepared = prepare(make())
    return _apart(prepared.results(prepared.step()), exact, unanswered)


def _apart(results: problem.Results, exact: Prepared, unanswered: list[str]) -> float:
    compared: Mapping[str, Any] = {k: v for k, v in results.items() if k not in unanswered}
    return problem.distance(compared, exact.results(exact.step()))


def _seconds(step: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats
