"""Workers of one kind: one answers one question at a time, and then waits for the next, of any
thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hemstitch.workers.worker import CannotStart, Closed, Ended, Limits, TookTooLong, Worker


class WorkerPool:
    """They are kept, since to start one takes as long as a kernel."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._idle: list[Worker] = []
        os.register_at_fork(after_in_child=self._idle.clear)

    def start(self) -> None:
        """One that is asked soon."""
        with suppress(CannotStart), self.worker():
            pass

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """For this thread alone. Raises CannotStart."""
        worker = self._waiting() or Worker(self._path, self._limits)
        try:
            yield worker
        finally:
            if worker.is_alive:
                self._idle.append(worker)

    def _waiting(self) -> Worker | None:
        """The one that was asked last; the others may end."""
        with suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.close()
        return None


class Asker:
    """What asks workers of a pool, in any thread, until it is closed."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._asked: set[Worker] = set()
        self._is_open = True

    def ask(self, question: bytes) -> bytes:
        """Raises Refused, CannotStart, Ended for what ends each worker, or Closed."""
        try:
            return self._ask(question)
        except TookTooLong:
            raise
        except Ended:  # perhaps by somebody else, where memory is scarce
            return self._ask(question)

    def _ask(self, question: bytes) -> bytes:
        with self._pool.worker() as worker:
            self._asked.add(worker)
            try:
                if not self._is_open:
                    raise Closed
                return worker.ask(question)
            finally:
                self._asked.discard(worker)

    def close(self) -> None:
        """Answers that are not there yet are of no use any more."""
        self._is_open = False
        for worker in list(self._asked):
            worker.close()
