"""Triton's compiler in worker processes. Takes what `cross.build_for` takes, with the kernel's
text, and leaves the kernel in Triton's cache, where this process finds it."""

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

from hemstitch.cache.crashes import unless_killed
from hemstitch.cache.records import compiler
from hemstitch.errors import KernelBuildError
from hemstitch.toolchain.llvm_workers import LIMITS
from hemstitch.workers.pool import Asker, WorkerPool
from hemstitch.workers.worker import CannotStart, Ended, RefusedQuestion

SETTINGS = "TRITON_"  # in front of what Triton reads in the environment


@once
def compilers() -> WorkerPool:
    """Of this process."""
    return WorkerPool(Path(__file__).with_name("triton_worker.py"), LIMITS)


def compile_elsewhere(
    text: str,
    entry: str,
    signature: Mapping[str, str],
    target: str,
    choices: Mapping[str, Any],
    *,
    cache: bool,
) -> None:
    """`cache`: as in `unless_killed`. Raises KernelBuildError. Where no process can be started
    nothing is compiled."""
    asked = {
        "text": text,
        "entry": entry,
        "signature": signature,
        "target": target,
        "choices": choices,
    }
    key = json.dumps([asked, triton.__version__, compiler()])
    environment = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    environment["TRITON_CACHE_DIR"] = triton.knobs.cache.dir
    question = json.dumps({**asked, "environment": environment}).encode()
    with closing(Asker(compilers())) as asker:
        try:
            unless_killed(key, partial(asker.ask, question), cache=cache)
        except (RefusedQuestion, Ended) as error:
            raise KernelBuildError(str(error)) from error
        except CannotStart:
            return
