"""LLVM in worker processes, which compile in parallel while this process lowers the next kernel.
Takes texts, gives object files.

They are processes, since LLVM may crash, hang or run out of memory, and llvmlite has a global
lock."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

from hemstitch.toolchain import llvm_objects
from hemstitch.workers.pool import WorkerClient, WorkerPool
from hemstitch.workers.worker import CannotStart, Limits

# For one kernel. The largest of a transformer or an unrolled LSTM, in training, takes 0.4 s; LLVM
# itself maps 200 MB, Triton 250.
LIMITS = Limits(processor_seconds=60.0, seconds=600.0, memory=4 << 30)


@cache
def compilers() -> WorkerPool:
    """The compiler processes of this process."""
    return WorkerPool(Path(llvm_objects.__file__), LIMITS)


class Helpers:
    """The threads that compile for one graph; `close` ends what is still running."""

    def __init__(self, most: int) -> None:
        self._client = WorkerClient(compilers())
        self._threads = ThreadPoolExecutor(most, "hemstitch-helper")
        self._futures: dict[str, Future[bytes]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._threads.shutdown()

    def begin(self, text: str) -> None:
        """Start the compilation of a text, once."""
        if text not in self._futures:
            self._futures[text] = self._threads.submit(self._client.ask, text.encode())

    def compiled(self, text: str) -> bytes:
        """Raises RefusedQuestion if LLVM rejects the text, WorkerDied if it crashes. If no worker
        can be started, this process compiles."""
        future = self._futures.pop(text, None)
        try:
            return self._client.ask(text.encode()) if future is None else future.result()
        except CannotStart:
            return llvm_objects.compiled(text)


def compiled(text: str) -> bytes:
    """Compile one text."""
    with closing(Helpers(1)) as helpers:
        return helpers.compiled(text)
