"""compute-sanitizer over the cases whose programs meet, at barriers of the device or by tickets:
races within a program and accesses out of bounds, which no emulator sees as hardware does."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu import correctness, device
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.worker import Job, Line, Worker

TOOLS = ("racecheck", "memcheck")
PROGRAM = "compute-sanitizer"
FOUND = 9  # exit status
SECONDS = 60.0  # for one case under one tool


def jobs(kind: str, _: list[Line]) -> list[Job]:
    return [
        {"device": kind, "tool": tool, "job": job}
        for job in correctness.with_barriers(kind)
        for tool in TOOLS
    ][: None if kind == device.CUDA else 1]


PHASES = (Phase(jobs, job_seconds=2 * SECONDS, parallel=True),)


def run(job: Job) -> Iterator[Line]:
    """A process of its own for each."""
    program = device.program(PROGRAM) if job["device"] == device.CUDA else None
    line = {"device": job["device"], "tool": job["tool"], "case": job["job"]["case"]}
    if program is None:
        yield line | {"skipped": f"there is no {PROGRAM}"}
        return
    prefix = (program, "--tool", job["tool"], "--error-exitcode", str(FOUND))
    worker = Worker(correctness.__name__, prefix)
    results = list(worker.do(job["job"], SECONDS))
    status = worker.stop()
    failures = [result["failure"] for result in results if "failure" in result]
    yield line | {
        "clean": status == 0 and not failures,
        "status": status,
        "failures": failures,
        "words": worker.last_words(),
    }
