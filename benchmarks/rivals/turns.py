"""One model by several ways in turns: A B C A B C. Takes ways, gives each one's times, what it was
measured to take once, or why it failed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu.worker import Line, Worker
from benchmarks.models import Size
from benchmarks.rivals.ways import Way
from benchmarks.timing import Timing

LIMIT_SECONDS = 600.0  # of compiling; what takes longer (XLA, CRNN) also takes 20 GB
MODULE = "benchmarks.rivals.process"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all models of a table. `python` is where the rivals are installed."""

    training: bool
    size: Size
    threads: int
    rounds: int
    python: str = sys.executable
    autocast: bool = False  # to bf16


@dataclass(slots=True)
class Measured:
    """By way. Of `once`: first (seconds), peak and held (megabytes), distance, counts."""

    model: str
    timings: dict[str, Timing] = field(default_factory=dict)
    once: dict[str, Line] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def measured(model: str, ways: Mapping[str, Way], setting: Setting) -> Measured:
    measurement = Measured(model)
    with ExitStack() as stack:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        streams: dict[str, Iterator[Line]] = {}
        for name, way in ways.items():
            worker = _worker(way, setting, cache / name.replace(" ", "-"))
            stack.callback(worker.stop, kill=True)
            streams[name] = worker.do(_job(model, way, setting), LIMIT_SECONDS)
            if line := _next(name, streams, measurement):
                measurement.once[name] = line
        samples: dict[str, list[float]] = {name: [] for name in streams}
        for _ in range(setting.rounds):
            for name in list(streams):
                if line := _next(name, streams, measurement):
                    samples[name].append(line["seconds"])
        measurement.timings = {name: Timing(tuple(samples[name])) for name in streams}
    return measurement


def versions(python: str, packages: Iterable[str]) -> dict[str, str]:
    """Of those that this Python has."""
    find = (
        "import importlib.metadata as m, json, sys; "
        "there = {d.name.lower(): d.version for d in m.distributions()}; "
        "print(json.dumps({x: there[x] for x in sys.argv[1:] if x in there}))"
    )
    command = [python, "-c", find, *packages]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    installed: dict[str, str] = json.loads(printed)
    return installed


def _worker(way: Way, setting: Setting, cache: Path) -> Worker:
    """Equal threads for all; nothing that was compiled before. Only rivals have another Python."""
    environment = {
        "OMP_NUM_THREADS": f"{setting.threads}",
        "NPROC": f"{setting.threads}",  # XLA's
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}",
        "HEMSTITCH_CACHE": "0",
    }
    python = setting.python if way.packages else sys.executable
    return Worker(MODULE, threads=setting.threads, python=python, environment=environment)


def _job(model: str, way: Way, setting: Setting) -> Line:
    what = {"training": setting.training, "size": setting.size, "threads": setting.threads}
    return {"model": model, "autocast": setting.autocast, **what, **asdict(way)}


def _next(name: str, streams: dict[str, Iterator[Line]], measurement: Measured) -> Line:
    """Nothing from one that failed, which has no further turn."""
    line = next(streams[name], {"failure": "its process ended"})
    if "failure" not in line:
        return line
    measurement.failures[name] = line["failure"]
    del streams[name]
    return {}
