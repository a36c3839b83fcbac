"""LLVM in worker processes: as many texts at once as there are threads, while this process prints
the next kernel. Texts in, object files out.

Processes, since LLVM may crash, hang or run out of memory, and llvmlite lets one thread at a time
into it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

from hemstitch.toolchain import llvm_objects
from hemstitch.workers.pool import Asker, WorkerPool
from hemstitch.workers.worker import CannotStart, Limits

# For one kernel. The largest of a transformer or an unrolled LSTM, in training, takes 0.4 s; LLVM
# itself has 200 MB of addresses, Triton 250.
LIMITS = Limits(processor_seconds=60.0, seconds=600.0, memory=4 << 30)


@cache
def compilers() -> WorkerPool:
    """Of this process."""
    return WorkerPool(Path(llvm_objects.__file__), LIMITS)


class Helpers:
    """What compiles for one graph: nothing that was begun for it outlives it."""

    def __init__(self, most: int) -> None:
        self._asker = Asker(compilers())
        self._threads = ThreadPoolExecutor(most, "hemstitch-helper")
        self._begun: dict[str, Future[bytes]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._asker.close()
        self._threads.shutdown()

    def begin(self, text: str) -> None:
        """Have it compiled; a text once."""
        if text not in self._begun:
            self._begun[text] = self._threads.submit(self._asker.ask, text.encode())

    def compiled(self, text: str) -> bytes:
        """Raises Refused if LLVM refuses the text, Ended if it does not survive it. Where no
        process can be started this one compiles."""
        begun = self._begun.pop(text, None)
        try:
            return self._asker.ask(text.encode()) if begun is None else begun.result()
        except CannotStart:
            return llvm_objects.compiled(text)


def compiled(text: str) -> bytes:
    """One text, for who has no graph."""
    with closing(Helpers(1)) as helpers:
        return helpers.compiled(text)
