"""Triton's compiler in worker processes. Takes the arguments of `build_for` and the kernel's text,
and puts the kernel in Triton's cache, where this process finds it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import closing
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

import triton

from hemstitch.cache.crashes import compile_unless_crashed
from hemstitch.cache.records import source_digest
from hemstitch.errors import KernelBuildError
from hemstitch.toolchain.llvm_workers import LIMITS
from hemstitch.workers.pool import WorkerClient, WorkerPool
from hemstitch.workers.worker import CannotStart, RefusedQuestion, WorkerDied

SETTINGS = "TRITON_"  # prefix of Triton's environment variables


@once
def compilers() -> WorkerPool:
    """The compiler processes of this process."""
    return WorkerPool(Path(__file__).with_name("triton_worker.py"), LIMITS)


def compile_in_worker(
    text: str,
    entry: str,
    signature: Mapping[str, str],
    target: str,
    choices: Mapping[str, Any],
    *,
    cache: bool,
) -> None:
    """`cache`: as in `compile_unless_crashed`. Raises KernelBuildError. Does nothing if no worker
    can be started."""
    request = {
        "text": text,
        "entry": entry,
        "signature": signature,
        "target": target,
        "choices": choices,
    }
    key = json.dumps([request, triton.__version__, source_digest()])
    environment = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    environment["TRITON_CACHE_DIR"] = triton.knobs.cache.dir
    question = json.dumps({**request, "environment": environment}).encode()
    with closing(WorkerClient(compilers())) as client:
        try:
            compile_unless_crashed(key, partial(client.ask, question), cache=cache)
        except (RefusedQuestion, WorkerDied) as error:
            raise KernelBuildError(str(error)) from error
        except CannotStart:
            return
