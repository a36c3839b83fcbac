"""The memory-intensive cases by all contenders, in turns, with and without CUDA graphs: a line for
each case, size, type and direction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.calls import WRAPPERS, bytes_moved, compiled, prepared
from benchmarks.cases import CASES, Case, tensors
from benchmarks.gpu import device, xla
from benchmarks.gpu.correctness import DTYPES, case_named
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.worker import READY, Job, Line, told
from benchmarks.limit import copy_of, copying
from benchmarks.products import PRODUCTS
from benchmarks.timing import Function, Timing, geometric_mean, paired

OURS, TUNED = "hemstitch", "inductor max-autotune"
CONTENDERS: dict[str, dict[str, dict[str, Any]]] = {
    device.CUDA: {
        "eager": {"backend": "eager"},
        "inductor": {"backend": "inductor"},
        TUNED: {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
        OURS: {"backend": OURS, "options": device.options(device.CUDA)},
    },
    device.INTERPRET: {
        "eager": {"backend": "eager"},
        OURS: {"backend": OURS, "options": device.options(device.INTERPRET)},
    },
}
BEYOND, SMALL, NAMED, TINY = "beyond L2", "small", "as named", "tiny"
TIMES_L2, SMALL_BYTES = 6, 2 << 20  # that a forward pass moves
ROUNDS, SAMPLE_SECONDS = 9, 3e-3
LEAST = 0.98  # of the best of the others: less is listed
TINY_CASES = 3


def jobs(kind: str, _: list[Line]) -> list[Job]:
    """What matters most first: what is left out when time is short is bf16 without products."""
    if kind == device.INTERPRET:
        return _jobs(
            kind, [(case, TINY, "f32") for case in CASES[:TINY_CASES]], list(CONTENDERS[kind])
        )
    sizes = (
        *((BEYOND, "f32", CASES), (BEYOND, "bf16", PRODUCTS)),
        *((SMALL, "f32", CASES), (BEYOND, "bf16", CASES)),
    )
    chosen = [
        (case, NAMED if case.rows is not None else size, dtype)
        for size, dtype, cases in sizes
        for case in cases
        if case.rows is None or size == BEYOND
    ]
    return _jobs(kind, chosen, [name for name in CONTENDERS[kind] if name != TUNED])


def tuned_jobs(kind: str, _: list[Line]) -> list[Job]:
    """Where tuning has something to gain: it takes several times as long as all else."""
    if kind == device.INTERPRET:
        return []
    chosen = [(case, NAMED if case.rows is not None else BEYOND, "f32") for case in CASES]
    return _jobs(kind, chosen, [TUNED, OURS])


def _jobs(kind: str, chosen: Sequence[tuple[Case, str, str]], contenders: list[str]) -> list[Job]:
    return [
        {"device": kind, "case": case.name, "size": size, "dtype": dtype, "direction": direction}
        | {"contenders": contenders}
        for case, size, dtype in chosen
        for direction in (("forward", "both") if case.backward else ("forward",))
    ]


PHASES = (
    Phase(jobs, job_seconds=120.0, in_turns=True),
    Phase(tuned_jobs, job_seconds=240.0, in_turns=True),
)


def run(job: Job) -> Iterator[Line]:
    torch.manual_seed(0)
    kind, case = job["device"], case_named(job["case"])
    call = prepared(
        case,
        _rows(case, job),
        job["direction"],
        width=case.odd[0] if job["size"] == TINY else None,
        device=device.torch_device(kind),
        dtype=DTYPES[job["dtype"]],
    )
    rounds = 2 if job["size"] == TINY else ROUNDS
    functions, failures, first = _functions(case, job, call)
    yield {READY: True}
    about = {name: job[name] for name in ("device", "case", "size", "dtype", "direction")}
    about["shape"] = list(tensors(call[0])[0].shape)
    about["bytes"] = bytes_moved(case, call[0], job["direction"])
    about["first call"] = first  # in seconds, while other jobs compile
    try:
        yield {**about, "graphs": False, **_timed(kind, functions, call, rounds, failures)}
        if kind == device.CUDA:
            graphs = _captured(functions, call, failures)
            yield {**about, "graphs": True, **_timed(kind, graphs, call, rounds, failures)}
    finally:
        torch._dynamo.reset()


def _rows(case: Case, job: Job) -> int:
    if case.rows is not None:
        return case.rows
    if job["size"] == TINY:
        return 3
    count, more = 8, 0
    while more == 0:  # attention's rows come in heads
        few, many = (bytes_moved(case, case.arguments(n), "forward") for n in (count, 2 * count))
        count, more = 2 * count, (many - few) // count
    wanted = SMALL_BYTES if job["size"] == SMALL else TIMES_L2 * device.l2_bytes(job["device"])
    halves = 2 if job["dtype"] != "f32" else 1
    rows = max(1, wanted * halves // more)
    return rows // 8 * 8 or rows


def _functions(
    case: Case, job: Job, call: tuple[Any, ...]
) -> tuple[dict[str, Function], dict[str, str], dict[str, float]]:
    """The contenders that compile, why the others do not, and how long the first call took. Called
    once each."""
    kind, direction = job["device"], job["direction"]
    where = device.torch_device(kind)
    wrap = WRAPPERS[direction]
    there, moved = (bytes_moved(case, call[0], way) for way in ("forward", direction))
    limit = copying(copy_of(there, device=where), copy_of(moved - there, device=where))
    functions: dict[str, Function] = {"copy": copy_of(moved, device=where)}
    makers: dict[str, dict[str, Any]] = {"limit": {"backend": limit}}
    makers |= {name: CONTENDERS[kind][name] for name in job["contenders"]}
    failures, first = {}, {}
    for name, how in makers.items():
        start = time.perf_counter()
        try:
            function = wrap(compiled(case.function, **how))
            function(*call)
        except Exception as error:  # a contender that fails is a result too
            failures[name] = told(error)
        else:
            functions[name] = function
            first[name] = round(time.perf_counter() - start, 2)
    if direction == "forward" and TUNED not in job["contenders"]:
        try:
            other = xla.compiled(case.name, call[0])
        except Exception as error:
            failures["xla"] = told(error)
        else:
            functions |= {"xla": other} if other is not None else {}
    return functions, failures, first


def _captured(
    functions: dict[str, Function], call: tuple[Any, ...], failures: dict[str, str]
) -> dict[str, Function]:
    """XLA makes graphs of its own."""
    captured = {}
    for name, function in functions.items():
        if name == "xla":
            continue
        try:
            captured[name] = device.captured(function, call)
        except Exception as error:
            failures[name] = f"in a CUDA graph: {told(error)}"
    return captured


def _timed(
    kind: str,
    functions: dict[str, Function],
    call: tuple[Any, ...],
    rounds: int,
    failures: dict[str, str],
) -> Line:
    timings = paired(functions, [call], rounds, device.clock_of(kind), SAMPLE_SECONDS)
    return {
        "microseconds": {name: round(timing.median * 1e6, 2) for name, timing in timings.items()},
        "spread": spreads(timings),
        "over": over(timings),
        "failures": dict(failures),
    }


def over(timings: dict[str, Timing]) -> dict[str, float]:
    """How many times faster than each other Hemstitch is, by pairs of rounds."""
    if OURS not in timings:
        return {}
    ours = timings[OURS]
    ratios = {
        name: ours.times_faster_than(timing) for name, timing in timings.items() if name != OURS
    }
    return {name: float(f"{ratio:.4g}") for name, ratio in ratios.items()}


def spreads(timings: dict[str, Timing]) -> dict[str, float]:
    """Of those with more than one sample."""
    return {
        name: round(timing.spread, 3) for name, timing in timings.items() if len(timing.samples) > 1
    }


# --- of all lines


def others(line: Line) -> dict[str, float]:
    """Hemstitch against each contender, without what computes nothing."""
    return {name: times for name, times in line["over"].items() if name not in ("copy", "limit")}


def below(lines: Iterable[Line]) -> list[Line]:
    """Slower than the best of the others."""
    return [line for line in lines if min(others(line).values(), default=1.0) < LEAST]


def means(lines: list[Line]) -> dict[str, float]:
    """Geometric means of Hemstitch against each, and its share of what a copy reaches."""
    names = dict.fromkeys(name for line in lines for name in line["over"])
    return {
        name: geometric_mean(line["over"][name] for line in lines if name in line["over"])
        for name in names
    }
