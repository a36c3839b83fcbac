"""The demo's training step of BERT by all contenders in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.demo import BATCH, DROPOUT, HIDDEN, SEQUENCE, Problem, Trainer, difference
from benchmarks.gpu import device, speed
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.speed import CONTENDERS, OURS, TUNED
from benchmarks.gpu.worker import READY, Job, Line, told
from benchmarks.timing import Timing

EXACT_STEPS, WARM_UP, STEPS = 4, 4, 20
LARGE_BATCH = 64


def jobs(kind: str, _: list[Line]) -> list[Job]:
    """As in the demo, and with a batch that fills a GPU; in halves matrix products take less."""
    if kind == device.INTERPRET:
        small = {"layers": 1, "batch": 1, "sequence": 4, "hidden": 64}
        job = {"device": kind, **small, "dtype": "f32", "graphs": False, "steps": 1}
        return [job | {"contenders": list(CONTENDERS[kind])}]
    return _jobs(kind, [name for name in CONTENDERS[kind] if name != TUNED])


def tuned_jobs(kind: str, _: list[Line]) -> list[Job]:
    """Tuning takes several times as long as all else."""
    return [] if kind == device.INTERPRET else _jobs(kind, [TUNED, OURS])


def _jobs(kind: str, names: list[str]) -> list[Job]:
    sizes = [(BATCH, "f32"), (LARGE_BATCH, "bf16"), (BATCH, "bf16")]
    return [
        {"device": kind, "layers": 2, "batch": batch, "sequence": SEQUENCE, "hidden": HIDDEN}
        | {"dtype": dtype, "graphs": graphs, "steps": STEPS, "contenders": names}
        for batch, dtype in sizes
        for graphs in (False, True)
    ]


PHASES = (
    Phase(jobs, job_seconds=150.0, in_turns=True),
    Phase(tuned_jobs, job_seconds=240.0, in_turns=True),
)


def contenders(kind: str, graphs: bool) -> dict[str, dict[str, Any]]:
    """With `graphs` as each offers them to its users."""
    settings = CONTENDERS[kind]
    if not graphs:
        return settings
    with_graphs = {
        "eager": settings["eager"],
        "inductor": {"backend": "inductor", "mode": "reduce-overhead"},
        TUNED: {"backend": "inductor", "mode": "max-autotune"},
    }
    if not device.has_option("cuda_graphs"):
        return with_graphs
    options = device.options(kind, cuda_graphs=True)
    return with_graphs | {OURS: {"backend": OURS, "options": options}}


def run(job: Job) -> Iterator[Line]:
    size = {name: job[name] for name in ("layers", "batch", "sequence", "hidden")}
    problem = Problem(device.torch_device(job["device"]), **size)
    autocast = torch.bfloat16 if job["dtype"] == "bf16" else None
    trainers: dict[str, Trainer] = {}
    failures: dict[str, str] = {}
    losses: dict[str, tuple[float, ...]] = {}
    first: dict[str, float] = {}
    known = contenders(job["device"], job["graphs"])
    for name in job["contenders"]:
        how = known[name]
        try:
            exact = problem.trainer(0.0, autocast=autocast, **how)
            losses[name] = tuple(exact.step() for _ in range(min(EXACT_STEPS, job["steps"])))
            trainer = problem.trainer(DROPOUT, autocast=autocast, **how)
            start = time.perf_counter()
            trainer.step()
            first[name] = time.perf_counter() - start
            for _ in range(min(WARM_UP, job["steps"] - 1)):
                trainer.step()
        except Exception as error:
            failures[name] = told(error)
        else:
            trainers[name] = trainer
    yield {READY: True}
    timings = _in_turns(trainers, job["steps"])
    yield {
        **job,
        "milliseconds": {name: round(timing.median * 1e3, 3) for name, timing in timings.items()},
        "spread": speed.spreads(timings),
        "first step": {name: round(seconds, 2) for name, seconds in first.items()},
        "over": speed.over(timings),
        "loss differs": {
            name: difference(loss, losses["eager"])
            for name, loss in losses.items()
            if "eager" in losses
        },
        "failures": failures,
    }
    torch._dynamo.reset()


def _in_turns(trainers: dict[str, Trainer], steps: int) -> dict[str, Timing]:
    """A step ends with reading the loss, so the device has ended too."""
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(steps):
        for name, trainer in trainers.items():
            start = time.perf_counter()
            trainer.step()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(taken)) for name, taken in seconds.items()}
