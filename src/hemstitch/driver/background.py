"""Compiling beside the running program: who works meanwhile, and the call that changes over."""

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
LAST_SECONDS = 1.0  # that a job may take to end where the process does


class BackgroundThread:
    """Does jobs one after the other, in a thread that does not keep the process alive. A job deals
    with its own failures."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="hemstitch", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Before the interpreter goes: who comes back to it from C++ afterwards is ended where that
        must not be, which aborts the process. A job ends at its next line of Python, what waits is
        dropped; one that never comes there is left behind."""
        if not self._thread.is_alive():  # a fork: it has stayed with the parent
            return
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
        self._jobs.put(list)  # so that an idle one wakes up
        self._thread.join(LAST_SECONDS)

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


def later(job: Job) -> None:
    """Leave `job` to the one worker of this process."""
    _worker().submit(job)


class Deferred:
    """A boxed callable. Runs `first` until what `make` gives has come, which a job does that
    `submit` takes; a call under way stays with what it began with.

    If `make` fails, `first` stays, after one warning; `strict`: every call raises the error.
    """

    def __init__(
        self, first: Run, make: Callable[[], Run], submit: Callable[[Job], None], strict: bool
    ) -> None:
        self._boxed_call = True
        self._first = first
        self._ready: Run | None = None
        self._failures: list[Exception] = []
        self._strict = strict
        # Who drops a graph that still waits spares the work.
        self._job: Job | None = partial(_complete, weakref.ref(self), make)
        self._submit = submit
        self._begin()

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        ready = self._ready
        return self._meanwhile(arguments) if ready is None else ready(arguments)

    def _begin(self) -> None:
        self._process = os.getpid()
        if self._job is not None:
            self._submit(self._job)

    def _meanwhile(self, arguments: list[Any]) -> Sequence[Any]:
        if self._failures:
            self._tell()
        elif self._process != os.getpid():  # a fork: the thread has stayed with the parent
            self._begin()
        return self._first(arguments)

    def _tell(self) -> None:
        if self._strict:
            raise self._failures[0]
        try:
            failure = self._failures.pop()
        except IndexError:  # another thread says it
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
