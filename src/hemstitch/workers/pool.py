"""A pool of worker processes. A worker answers one question at a time, of any thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hemstitch.workers.worker import CannotStart, Closed, Limits, TookTooLong, Worker, WorkerDied


class WorkerPool:
    """Idle workers are retained, since starting one takes as long as compiling a kernel."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._idle: list[Worker] = []
        os.register_at_fork(after_in_child=self._idle.clear)

    def start(self) -> None:
        """Start a worker that will be used soon."""
        with suppress(CannotStart), self.worker():
            pass

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """A worker for the exclusive use of this thread. Raises CannotStart."""
        worker = self._take_idle() or Worker(self._path, self._limits)
        try:
            yield worker
        finally:
            if worker.is_alive:
                self._idle.append(worker)

    def _take_idle(self) -> Worker | None:
        """The most recently used idle worker; the others may time out."""
        with suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.close()
        return None


class WorkerClient:
    """Asks workers of a pool, in any thread, until it is closed."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._busy: set[Worker] = set()
        self._is_open = True

    def ask(self, question: bytes) -> bytes:
        """Raises RefusedQuestion, CannotStart, Closed, or WorkerDied if two workers die of the
        question."""
        try:
            return self._ask(question)
        except TookTooLong:
            raise
        except WorkerDied:  # perhaps by the out-of-memory killer
            return self._ask(question)

    def _ask(self, question: bytes) -> bytes:
        with self._pool.worker() as worker:
            self._busy.add(worker)
            try:
                if not self._is_open:
                    raise Closed
                return worker.ask(question)
            finally:
                self._busy.discard(worker)

    def close(self) -> None:
        """Kill the workers that are still busy."""
        self._is_open = False
        for worker in list(self._busy):
            worker.close()
