"""What compiling and calling cost apart from the work: the first call of a function of two
operations in a new process with empty caches, and later calls on tiny tensors.

python -m benchmarks.overhead [--backend NAME]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import Tensor

from benchmarks.timing import paired

BACKENDS = ("eager", "inductor")
ROUNDS = 15


def two_operations(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


def first_call(backend: str) -> float:
    """Seconds, from a process where PyTorch is imported and nothing was compiled."""
    x = torch.ones(64, 64)
    start = time.perf_counter()
    torch.compile(two_operations, backend=backend)(x, x)
    return time.perf_counter() - start


def first_call_in_new_process(backend: str) -> float:
    with tempfile.TemporaryDirectory() as empty_cache:
        command = [sys.executable, "-m", "benchmarks.overhead", "--first-call", backend]
        empty = {"TORCHINDUCTOR_CACHE_DIR": empty_cache, "HEMSTITCH_CACHE": "0"}
        environment = {**os.environ, **empty}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
    return float(result.stdout)


def tiny_calls(backends: list[str]) -> None:
    x = torch.ones(8)
    functions = {"eager": two_operations}
    for name in backends:
        torch._dynamo.reset()
        functions[name] = torch.compile(two_operations, backend=name)
    with torch.no_grad():
        timings = paired(functions, [(x, x)], ROUNDS)
    for name, timing in timings.items():
        print(f"{name:12} tiny call   {timing.median * 1e6:8.2f} us ±{timing.spread:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.overhead")
    parser.add_argument("--backend", default="hemstitch", help="compared with Inductor")
    parser.add_argument("--first-call", metavar="BACKEND", help="only this, in this process")
    arguments = parser.parse_args()
    if arguments.first_call:
        print(first_call(arguments.first_call))
        return
    compilers = list(dict.fromkeys(["inductor", arguments.backend]))
    for name in compilers:
        print(f"{name:12} first call  {first_call_in_new_process(name):8.2f} s", flush=True)
    tiny_calls(compilers)


if __name__ == "__main__":
    main()
