"""All that Hemstitch wants to know of a GPU, in one command and one budget of time; README.md here
says what the slices are.

python -m benchmarks.gpu [--slices correctness,sanitizer,fit,speed,kernels,training]
                         [--device cuda|interpret] [--minutes 9] [--json FILE]
python -m benchmarks.gpu --render FILE      a file's tables into docs/user/performance.md
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu import render
from benchmarks.gpu.device import CUDA, INTERPRET, KINDS, describe
from benchmarks.gpu.phase import Phase
from benchmarks.gpu.results import Results
from benchmarks.gpu.worker import Job, Line, work

# Of the time that is left when a slice begins, against the slices after it.
SHARES = {
    "correctness": 24.0,
    "sanitizer": 8.0,
    "fit": 14.0,
    "speed": 34.0,
    "kernels": 7.0,
    "training": 13.0,
}
RESERVE = 12.0  # seconds, to write and to end
MOST_WORKERS = 12
FOLDER = Path(__file__).resolve().parents[1] / "results"


def deadline_of(number: int, slices: list[str], end: float) -> float:
    """What a slice does not use goes to those after it."""
    now = time.monotonic()
    rest = sum(SHARES[name] for name in slices[number:])
    return now + max(0.0, end - RESERVE - now) * SHARES[slices[number]] / rest


def do(name: str, kind: str, only: str, deadline: float, workers: int, results: Results) -> None:
    """`only`: cases whose name contains one of these, separated by commas."""
    module = importlib.import_module(f"benchmarks.gpu.{name}")
    phases: tuple[Phase, ...] = module.PHASES
    parts = only.split(",")
    lines: list[Line] = []
    for number, phase in enumerate(phases):
        now = time.monotonic()
        share = 1.0 if number == len(phases) - 1 else 0.5
        jobs = [
            job
            for job in phase.jobs(kind, lines)
            if any(part in job.get("case", part) for part in parts)
        ]

        def keep(line: Line) -> None:
            lines.append(line)
            results.add(name, line)

        left_out: list[Job] = work(
            module.__name__,
            jobs,
            now + (deadline - now) * share,
            keep,
            workers=workers if phase.parallel or phase.in_turns else min(workers, 1),
            limit=phase.job_seconds,
            in_turns=phase.in_turns,
        )
        seconds = time.monotonic() - now
        results.end(name, number, len(jobs), left_out, seconds)
    files: Callable[[str, list[Line]], dict[str, str]] = getattr(module, "files", no_files)
    for ending, text in files(kind, lines).items():
        path = results.path.with_name(f"{results.path.stem}-{ending}.json")
        path.write_text(text, encoding="utf-8")


def no_files(kind: str, lines: list[Line]) -> dict[str, str]:
    return {}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--slices", default=",".join(SHARES), metavar=",".join(SHARES))
    parser.add_argument("--device", default=CUDA, choices=KINDS)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="cases named so in part")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; 0: only this one")
    parser.add_argument("--render", type=Path, metavar="FILE", help="only write the table")
    arguments = parser.parse_args()
    unknown = set(arguments.slices.split(",")) - set(SHARES)
    if unknown:
        parser.error(f"no slice is called {', '.join(sorted(unknown))}")
    if arguments.device == CUDA and not (arguments.render or torch.cuda.is_available()):
        parser.error("PyTorch finds no GPU; --device interpret needs none")
    return arguments


def main() -> None:
    end = time.monotonic()
    arguments = parse()
    if arguments.render:
        render.write(arguments.render)
        return
    end += 60 * arguments.minutes
    kind = arguments.device
    workers = arguments.workers
    if workers is None:
        cores = os.cpu_count() or 1
        workers = 0 if kind == INTERPRET else max(1, min(MOST_WORKERS, cores - 2))
    about = describe(kind)
    date = str(about["date"])[:16].replace(":", "")
    path = arguments.json or FOLDER / f"gpu-{date}.json"
    results = Results(path, about, {"slices": arguments.slices, "minutes": arguments.minutes})
    slices = [name for name in SHARES if name in arguments.slices.split(",")]
    for number, name in enumerate(slices):
        deadline = deadline_of(number, slices, end)
        try:
            do(name, kind, arguments.only, deadline, workers, results)
        except Exception as error:  # the other slices do not depend on it
            results.add(name, {"failure": f"the slice ended: {type(error).__name__}: {error}"})
    print("\n".join(render.report(results.record)))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
