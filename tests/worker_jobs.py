"""Jobs for the tests of benchmarks/gpu/worker.py: good ones and bad ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator


def run(job: dict[str, str]) -> Iterator[dict[str, object]]:
    sys.stdout.write("noise of a library\n")
    if job["name"] == "crash":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(3)
    if job["name"] == "hang":
        time.sleep(60)
    if job["name"] == "raise":
        raise ValueError("no good")
    if job["name"] == "parent":
        yield {"child": subprocess.Popen(["sleep", "60"]).pid}
        time.sleep(60)
    if job["name"] == "turn":
        yield {"ready": True}
        start = time.monotonic()
        time.sleep(0.2)
        yield {"from": start, "to": time.monotonic()}
        return
    yield job
