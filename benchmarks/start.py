"""How long a program waits for its first training step: started for the first time, and again.

python -m benchmarks.start [--only bert,dien] [--autocast] [--json FILE]
python -m benchmarks.start --json FILE --table      its numbers into docs/user/performance.md

Each start is a process of its own, with the models and inputs of `benchmarks.training`. Compilers
keep what they want between two starts, in a folder that is empty before the first. The clock runs
from when PyTorch is imported and the model made to the end of the step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.rivals.problem import MODELS, made
from benchmarks.table import PERFORMANCE, write
from benchmarks.timing import geometric_mean

MARKS = "<!-- starts: made by benchmarks/start.py -->", "<!-- end of starts -->"
BACKENDS = ("inductor", "hemstitch")
HEADING = "| model | Inductor | again | Hemstitch | again |\n|---|---|---|---|---|"
Seconds = Mapping[str, Sequence[float]]  # by backend: of the first start, and the second


def first_step(model: str, backend: str, autocast: bool) -> float:
    """Seconds, in this process."""
    program = made(model, "large", True, autocast=autocast)
    start = time.perf_counter()
    torch.compile(program.model, backend=backend)(**program.arguments)[0].backward()
    return time.perf_counter() - start


def starts(model: str, backend: str, autocast: bool) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.start", "--only", model, "--here", backend]
    command += ["--autocast"] if autocast else []
    with tempfile.TemporaryDirectory() as empty:
        places = {"HOME": empty, "TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor"}
        environment = {**os.environ, **places}
        options: dict[str, Any] = {"env": environment, "check": True, "stdout": subprocess.PIPE}
        return [float(subprocess.run(command, **options).stdout) for _ in range(2)]


def row(model: str, seconds: Seconds) -> str:
    numbers = (f"{each:.1f}" for backend in BACKENDS for each in seconds[backend])
    return f"| {model} | {' | '.join(numbers)} |"


def summary(found: Mapping[str, Seconds]) -> Iterator[str]:
    """Geometric means of Inductor's seconds over ours."""
    for start, name in enumerate(("first", "second")):
        pairs = [[each[backend][start] for backend in BACKENDS] for each in found.values()]
        mean = geometric_mean(theirs / ours for theirs, ours in pairs)
        yield f"- the {name} start: Inductor takes {mean:.2f} times as long ({len(pairs)} models)"


def table(record: Mapping[str, Any]) -> list[str]:
    host, found = record["machine"], record["seconds"]
    rows = [HEADING, *(row(*each) for each in found.items()), "", *summary(found), ""]
    about = f"{host['processor']}, {host['vectors']}, {host['cores']} cores"
    return [*rows, f"{about}, PyTorch {host['torch']}, {host['date'][:10]}."]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.start")
    parser.add_argument("--only", default=",".join(MODELS), metavar="MODELS")
    parser.add_argument("--autocast", action="store_true", help="to bf16")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--here", metavar="BACKEND", help="one start, in this process")
    arguments = parser.parse_args()
    if arguments.table:
        write(PERFORMANCE, table(json.loads(arguments.json.read_text("utf-8"))), *MARKS)
        return
    names = arguments.only.split(",")
    if arguments.here:
        print(first_step(names[0], arguments.here, arguments.autocast))
        return
    found: dict[str, Seconds] = {}
    print(HEADING, flush=True)
    for name in names:
        found[name] = {each: starts(name, each, arguments.autocast) for each in BACKENDS}
        print(row(name, found[name]), flush=True)
        if arguments.json:  # after every model: a long run may be cut short
            record = {"machine": describe(), "autocast": arguments.autocast, "seconds": found}
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("", *summary(found), sep="\n")


if __name__ == "__main__":
    main()
