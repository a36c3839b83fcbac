"""A worker process as who asks it sees it: a file that answers, limits, `ask`. It may die of a
question; who asks does not.

Not `multiprocessing`, which runs the user's main module again, or forks a process whose threads
hold locks. Messages go through a socket: whatever a library prints there, it does not disturb them.
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

START_SECONDS = 60.0  # for what takes 0.1 s where the machine is not busy
IDLE_SECONDS = 30.0  # then it ends, and its memory is the user's again
DYING_SECONDS = 1.0  # from the end of its socket to its own
LAST_WORDS, MOST_WORDS = 400, 1 << 16  # characters that are told, bytes of which


class CannotStart(Exception):
    """No worker is to be had: no process may be started, or no Python is known."""


class Ended(Exception):
    """The worker has ended while it had a question: it crashed, or went beyond a limit."""


class TookTooLong(Ended):
    """One that would take as long again."""


class Closed(Exception):
    """This process has ended the worker while another thread waited for its answer."""


class RefusedQuestion(Exception):
    """What the worker says of a question that it has no answer to."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one answer. `processor_seconds`: that work may take; `seconds`: until nobody waits any
    more, which only what does not even work reaches. `memory`: bytes of addresses; 0: no limit."""

    processor_seconds: float
    seconds: float
    memory: int = 0


class Worker:
    """One process. Raises CannotStart."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._limits = limits
        self._is_ready = self._is_closed = False
        self._socket, theirs = socket.socketpair()
        words, said = os.pipe()
        self._words = FileIO(words)  # which any thread may close, and which is closed once
        os.set_blocking(said, False)  # what nobody reads is lost, not waited for
        try:
            self.process = _start(theirs.fileno(), said, path, limits)
        except OSError as error:
            self._let_go()
            raise CannotStart(str(error)) from error
        finally:
            theirs.close()
            os.close(said)
        _ALIVE.add(self)

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self.process.poll() is None

    def ask(self, question: bytes, seconds: float | None = None) -> bytes:
        """`seconds`: instead of the limit's. Raises Refused, Ended, Closed or CannotStart; whatever
        interrupts it ends the worker."""
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
        """It, and what it has started, at once."""
        self._is_closed = True
        self._kill()
        self._let_go()

    def forget(self) -> None:
        """In a fork: it has stayed with the parent."""
        self.process.returncode = 0
        self._let_go()

    def _kill(self) -> None:
        if self.process.poll() is None:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _let_go(self) -> None:
        self._words.close()
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
        """Why it is gone, or about to be."""
        if self._is_closed:
            return Closed()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(DYING_SECONDS)
        self._kill()
        try:
            words = _last_words(self._words.read(MOST_WORDS))
        except (OSError, ValueError):  # closed in the meantime
            return Closed()
        self._let_go()
        status = self.process.returncode
        if status == -signal.SIGXCPU:
            limit = self._limits.processor_seconds
            return TookTooLong(f"a worker process worked for more than {limit:.0f} s")
        end = (
            f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        )
        return Ended(f"a worker process {end}{words and f': {words}'}")


_ALIVE: weakref.WeakSet[Worker] = weakref.WeakSet()


def _each(act: Callable[[Worker], None]) -> None:
    for worker in list(_ALIVE):
        act(worker)


os.register_at_fork(after_in_child=partial(_each, Worker.forget))
atexit.register(_each, Worker.close)


def may_start() -> bool:
    """Whether this process knows a Python to start: one that is embedded may be told itself."""
    is_python = "python" in Path(sys.executable or "").name.lower()
    return is_python and not getattr(sys, "frozen", False)


def _start(number: int, said: int, path: Path, limits: Limits) -> subprocess.Popen[bytes]:
    """Isolated and without `site`, which may run the user's code: it finds its modules where this
    process does."""
    if not may_start():
        raise OSError("no Python to start is known")
    settings = (number, path, limits.processor_seconds, limits.memory, IDLE_SECONDS, *sys.path)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", serve.__file__, *map(str, settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        pass_fds=(number,),
        start_new_session=True,  # Ctrl-C is for us
    )


def _last_words(content: bytes) -> str:
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    return " | ".join(filter(None, lines))[-LAST_WORDS:]
