"""A row in a child process with limits of time and memory. Children are forked from one process
that has imported the libraries already."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.zoo.row import How

GIBIBYTE = 1 << 30
TIMES = 10
PATIENCE = 5  # seconds
PRELOADED = ["benchmarks.zoo.warm"]
CONTEXT = multiprocessing.get_context("forkserver")


def preload() -> None:
    CONTEXT.set_forkserver_preload(PRELOADED)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one model. `seconds` of processor time; where others use the machine too, it may take
    `TIMES` as long. `memory`: GiB of addresses."""

    seconds: int
    memory: int


def row(
    asked: Callable[..., Iterator[dict[str, Any]]],
    package: str,
    name: str,
    how: How,
    limits: Limits,
) -> dict[str, Any]:
    """What the child said when `asked` about the model; "ended" says how, where it did not come to
    its end."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=_child, args=(sender, limits, asked, package, name, how))
    start = time.monotonic()
    child.start()
    sender.close()
    said = _heard(receiver, start + TIMES * limits.seconds)
    child.join(PATIENCE)
    if not said.pop("done", False):
        is_late = child.exitcode in (None, -signal.SIGXCPU)
        said["ended"] = f"after {limits.seconds} s" if is_late else f"exit code {child.exitcode}"
    child.kill()
    child.join()
    return {"package": package, "name": name, "seconds": round(time.monotonic() - start, 1), **said}


def _heard(receiver: Connection, deadline: float) -> dict[str, Any]:
    said: dict[str, Any] = {}
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            said |= receiver.recv()
        except EOFError:
            break
        if "done" in said:
            break
    return said


def _child(
    sender: Connection,
    limits: Limits,
    asked: Callable[..., Iterator[dict[str, Any]]],
    *arguments: Any,
) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory * GIBIBYTE,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + PATIENCE))
    for part in asked(*arguments):
        sender.send(part)
    sender.send({"done": True})
