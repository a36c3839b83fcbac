"""Jobs for the tests of benchmarks/gpu/worker.py: good ones and bad ones."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator


def run(job: dict[str, str]) -> Iterator[dict[str, str]]:
    sys.stdout.write("noise of a library\n")
    if job["name"] == "crash":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(3)
    if job["name"] == "hang":
        time.sleep(60)
    if job["name"] == "raise":
        raise ValueError("no good")
    yield job
