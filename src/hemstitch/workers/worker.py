"""The parent's side of a worker process: the file with its function, its limits, and `ask`. The
worker may die of a question; the parent does not.

Not `multiprocessing`, which imports the user's main module again, or forks a process whose threads
hold locks. Messages go through a socket, which is safe from what a library prints.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

from hemstitch.workers import serve

START_SECONDS = 60.0  # it takes 0.1 s on an idle machine
IDLE_SECONDS = 30.0  # then it exits
DYING_SECONDS = 1.0  # between the end of its socket and its exit
LAST_WORDS, MOST_WORDS = 400, 1 << 16  # characters of an error message, bytes that are read for it


class CannotStart(Exception):
    """No worker can be started: processes are not allowed, or no Python is known."""


class WorkerDied(Exception):
    """The worker died of a question: it crashed, or exceeded a limit."""


class TookTooLong(WorkerDied):
    """The worker exceeded a limit of time; there is no second attempt."""


class Closed(Exception):
    """Another thread of this process closed the worker during a question."""


class RefusedQuestion(Exception):
    """The worker's function raised an error."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one answer. `processor_seconds`: CPU time; `seconds`: wall time, which only a worker that
    hangs without work exceeds. `memory`: bytes of address space; 0: no limit."""

    processor_seconds: float
    seconds: float
    memory: int = 0


class Worker:
    """One process. Raises CannotStart."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._limits = limits
        self._is_ready = self._is_closed = False
        self._socket, theirs = socket.socketpair()
        errors, stderr = os.pipe()
        self._errors = FileIO(errors)  # any thread may close it, and closing it again is harmless
        os.set_blocking(stderr, False)  # a full pipe drops output and does not block
        try:
            self.process = _start(theirs.fileno(), stderr, path, limits)
        except OSError as error:
            self._close_files()
            raise CannotStart(str(error)) from error
        finally:
            theirs.close()
            os.close(stderr)
        _ALIVE.add(self)

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self.process.poll() is None

    def ask(self, question: bytes, seconds: float | None = None) -> bytes:
        """`seconds`: in place of the limit. Raises RefusedQuestion, WorkerDied, Closed or
        CannotStart; any other exception kills the worker."""
        seconds = self._limits.seconds if seconds is None else seconds
        try:
            self._wait_until_ready()
            self._socket.settimeout(seconds)
            serve.send(self._socket, question)
            is_good, answer = serve.receive(self._socket)
        except TimeoutError:
            self.close()
            raise TookTooLong(f"a worker process gave no answer in {seconds:.0f} s") from None
        except (OSError, EOFError):
            raise self._end() from None
        except BaseException:
            self.close()
            raise
        if not is_good:
            raise RefusedQuestion(answer.decode())
        return answer

    def close(self) -> None:
        """Kill it and its children."""
        self._is_closed = True
        self._kill()
        self._close_files()

    def forget(self) -> None:
        """In a forked child: the worker belongs to the parent."""
        self.process.returncode = 0
        self._close_files()

    def _kill(self) -> None:
        if self.process.poll() is None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _close_files(self) -> None:
        self._errors.close()
        self._socket.close()

    def _wait_until_ready(self) -> None:
        if not self._is_ready:
            self._socket.settimeout(START_SECONDS)
            try:
                serve.receive(self._socket)
            except (OSError, EOFError):
                end = self._end()
                raise end if isinstance(end, Closed) else CannotStart(str(end)) from None
            self._is_ready = True

    def _end(self) -> Exception:
        """Why it died, as an exception."""
        if self._is_closed:
            return Closed()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(DYING_SECONDS)
        self._kill()
        try:
            errors = _end_of_output(self._errors.read(MOST_WORDS))
        except (OSError, ValueError):  # another thread closed it
            return Closed()
        self._close_files()
        status = self.process.returncode
        if status == -signal.SIGXCPU:
            limit = self._limits.processor_seconds
            return TookTooLong(f"a worker process worked for more than {limit:.0f} s")
        end = (
            f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        )
        return WorkerDied(f"a worker process {end}{errors and f': {errors}'}")


_ALIVE: weakref.WeakSet[Worker] = weakref.WeakSet()


def _for_all(act: Callable[[Worker], None]) -> None:
    for worker in list(_ALIVE):
        act(worker)


os.register_at_fork(after_in_child=partial(_for_all, Worker.forget))
atexit.register(_for_all, Worker.close)


def may_start() -> bool:
    """Whether `sys.executable` is a Python; in an embedded interpreter it may be the host
    program."""
    is_python = "python" in Path(sys.executable or "").name.lower()
    return is_python and not getattr(sys, "frozen", False)


def _start(number: int, stderr: int, path: Path, limits: Limits) -> subprocess.Popen[bytes]:
    """Isolated and without `site`, which may run the user's code; it has this process's
    `sys.path`."""
    if not may_start():
        raise OSError("no Python to start is known")
    settings = (number, path, limits.processor_seconds, limits.memory, IDLE_SECONDS, *sys.path)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", serve.__file__, *map(str, settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(number,),
        start_new_session=True,  # Ctrl-C is for this process only
    )


def _end_of_output(content: bytes) -> str:
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    return " | ".join(filter(None, lines))[-LAST_WORDS:]
