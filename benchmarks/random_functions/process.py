"""Many seeds in a child process. Some programs are compiled as one, which takes less time, and each
alone where that one differs. Whatever ends the child is the fault of what it was trying."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo.guards

import hemstitch.backend  # noqa: F401  so that children have it
from benchmarks.random_functions.draw import drawn
from benchmarks.random_functions.judge import difference, is_runnable
from benchmarks.random_functions.program import Program, combined, described
from benchmarks.random_functions.shrink import shrunk

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "torch._dynamo", "benchmarks.random_functions.process"]
TOGETHER = 4  # programs in one
Row = dict[str, Any]


def rows(seeds: Sequence[int], chunk: int, seconds: float, shrink: float) -> Iterator[Row]:
    """Of each seed. `chunk`: seeds a child. `seconds`: until its next row. `shrink`: seconds that
    a program may take to be made shorter."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    for start in range(0, len(seeds), chunk):
        left = [*seeds[start : start + chunk]]
        while left:
            trying: list[int] = []
            for said in _said(left, TOGETHER, seconds, shrink):
                if isinstance(said, list):
                    trying = said
                elif "seed" in said:
                    left.remove(said["seed"])
                    trying.remove(said["seed"])
                    yield said
                else:
                    yield from _alone(trying, seconds, shrink)
                    left = [seed for seed in left if seed not in trying]


def _alone(seeds: Sequence[int], seconds: float, shrink: float) -> Iterator[Row]:
    for seed in seeds:
        for said in _said([seed], 1, seconds, shrink):
            if isinstance(said, dict):
                yield {"seed": seed, "kind": "crash", "program": described(drawn(seed)), **said}


def _said(
    seeds: Sequence[int], together: int, seconds: float, shrink: float
) -> Iterator[Row | list[int]]:
    """What a child says: which seeds it tries, rows, and at last, if it did not come to its end,
    how it ended."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=_child, args=(sender, seeds, together, shrink))
    child.start()
    sender.close()
    is_done = False
    while not is_done and receiver.poll(seconds):
        try:
            said = receiver.recv()
        except EOFError:
            break
        is_done = said is None
        if not is_done:
            yield said
    if not is_done:
        child.join(5)
        yield {"text": _how(child.exitcode)}
    child.kill()
    child.join()


def _how(code: int | None) -> str:
    if code is None:
        return "hangs"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _child(sender: Connection, seeds: Sequence[int], together: int, shrink: float) -> None:
    torch.set_num_threads(1)
    # As in tests/conftest.py: a fifth of the time.
    gc.set_threshold(100_000, 20, 20)
    gc.freeze()
    torch._dynamo.config.run_gc_after_compile = False
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    groups: dict[tuple[bool, ...], list[int]] = {}
    for seed in seeds:
        program = drawn(seed)
        sender.send([seed])
        if not program.lines or not is_runnable(program):
            sender.send({"seed": seed, "kind": "left out"})
        else:
            groups.setdefault(program.settings, []).append(seed)
    for group in groups.values():
        for start in range(0, len(group), together):
            batch = group[start : start + together]
            sender.send(batch)
            for row in _rows(batch, shrink):
                sender.send(row)
    sender.send(None)


def _rows(seeds: Sequence[int], shrink: float) -> Iterator[Row]:
    programs = [drawn(seed) for seed in seeds]
    is_same = len(seeds) > 1 and _is_same(combined(programs))
    for seed, program in zip(seeds, programs):
        yield {"seed": seed, **({"kind": "same"} if is_same else _row(program, shrink))}
    gc.collect()


def _is_same(program: Program) -> bool:
    try:
        return difference(program) is None
    except Exception:  # that of a single program is told
        return False


def _row(program: Program, shrink: float) -> Row:
    try:
        seen = difference(program)
        if seen is None:
            return {"kind": "same"}
        if not seen.is_pytorch:
            program, seen = shrunk(program, seen, shrink)
    except Exception:  # of this driver
        return {"kind": "not judged", "text": traceback.format_exc()[-1500:]}
    kind = f"PyTorch's: {seen.kind}" if seen.is_pytorch else seen.kind
    return {"kind": kind, "text": seen.text, "program": described(program)}
