"""Compilation in the background: the worker thread, and a callable that switches to the compiled
graph."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue
from typing import Any

from hemstitch.errors import GraphWarning

Run = Callable[[list[Any]], Sequence[Any]]
Job = Callable[[], object]
EXIT_SECONDS = 1.0  # that a job may take to end when the process exits


class BackgroundThread:
    """Runs jobs in order, in a daemon thread. A job handles its own failures."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="hemstitch", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Called before the interpreter finalises: a thread that returns from C++ after that aborts
        the process. The running job ends at its next line of Python, waiting jobs are dropped. A
        job that does not return to Python in time is abandoned."""
        if not self._thread.is_alive():  # after a fork only the parent has the thread
            return
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
        self._jobs.put(list)  # wakes an idle thread
        self._thread.join(EXIT_SECONDS)

    def _work(self) -> None:
        with suppress(SystemExit):
            while True:
                self._jobs.get()()


@cache
def _worker() -> BackgroundThread:
    worker = BackgroundThread()
    atexit.register(worker.close)
    return worker


os.register_at_fork(after_in_child=_worker.cache_clear)


def submit_to_worker(job: Job) -> None:
    """Submit `job` to the worker of this process."""
    _worker().submit(job)


class Deferred:
    """A boxed callable. Runs `first` until the job that calls `make` is done, then its result.
    `submit` takes that job. A call in flight is not switched.
    If `make` fails, calls go on with `first` after one warning; `strict`: every call raises.
    """

    def __init__(
        self, first: Run, make: Callable[[], Run], submit: Callable[[Job], None], strict: bool
    ) -> None:
        self._boxed_call = True
        self._first = first
        self._ready: Run | None = None
        self._failures: list[Exception] = []
        self._strict = strict
        # A weak reference, so that a graph that is dropped early is not compiled.
        self._job: Job | None = partial(_complete, weakref.ref(self), make)
        self._submit = submit
        self._submit_job()

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        ready = self._ready
        return self._before_ready(arguments) if ready is None else ready(arguments)

    def _submit_job(self) -> None:
        self._process = os.getpid()
        if self._job is not None:
            self._submit(self._job)

    def _before_ready(self, arguments: list[Any]) -> Sequence[Any]:
        if self._failures:
            self._report_failure()
        elif self._process != os.getpid():  # after a fork only the parent has the thread
            self._submit_job()
        return self._first(arguments)

    def _report_failure(self) -> None:
        if self._strict:
            raise self._failures[0]
        try:
            failure = self._failures.pop()
        except IndexError:  # another thread has warned
            return
        warnings.warn(GraphWarning(failure), stacklevel=3)

    def complete(self, make: Callable[[], Run]) -> None:
        try:
            self._ready = make()
        except Exception as error:
            self._failures.append(error)
        self._job = None


def _complete(reference: weakref.ref[Deferred], make: Callable[[], Run]) -> None:
    deferred = reference()
    if deferred is not None:
        deferred.complete(make)
