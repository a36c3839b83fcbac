"""The programs of one launch: threads that hand one baton on, so that exactly one runs.

A program keeps the baton until it ends or waits for a value in memory. Which goes next is chosen
here, so every run can be repeated. A thread goes on with the next program, so a kernel that waits
for nothing is a plain loop in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from threading import Semaphore

import numpy as np

from hemstitch.errors import Location
from testing.emulator.findings import DeadlockError


class Order(Enum):
    """In which the programs that can go on do so."""

    FORWARD = "forward"
    REVERSE = "reverse"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class _Waiting:
    read: Callable[[], int]
    place: str
    seen: int
    where: Location | None
    go: Semaphore = field(default_factory=lambda: Semaphore(0))


class _Stopped(BaseException):
    """Unwinds a waiting program whose launch has failed."""


class Programs:
    """`enter` is called with a program's number whenever it gets the baton."""

    def __init__(self, count: int, order: Order, seed: int, enter: Callable[[int], None]) -> None:
        self.waits = 0
        self.current = 0
        self._count, self._order, self._enter = count, order, enter
        self._random = Random(seed)
        self._fresh = deque(self._ordered(list(range(count))))
        self._waiting: dict[int, _Waiting] = {}
        self._baton = Semaphore(0)
        self._failure: BaseException | None = None
        self._stopped = False

    def run(self, body: Callable[[int], None]) -> None:
        """Raises what a program raised, or DeadlockError."""
        with ThreadPoolExecutor(self._count) as pool:
            try:
                while self._failure is None and (program := self._next()) is not None:
                    if program in self._waiting:
                        self._begin(program)
                        self._waiting.pop(program).go.release()
                    else:
                        pool.submit(self._run, program, body)
                    self._baton.acquire()
                stuck = dict(self._waiting)
            finally:
                self._stop()
        if self._failure is not None:
            raise self._failure
        if stuck:
            raise self._deadlock(stuck)

    def wait(self, read: Callable[[], int], seen: int, place: str, where: Location | None) -> None:
        """Called by the running program: come back when `read()` has not the sign of `seen`."""
        self.waits += 1
        waiting = self._waiting[self.current] = _Waiting(read, place, seen, where)
        self._baton.release()
        waiting.go.acquire()
        if self._stopped:
            raise _Stopped

    def _run(self, program: int | None, body: Callable[[int], None]) -> None:
        """Fresh programs, one after the other, while it is their turn."""
        try:
            with np.errstate(all="ignore"):  # of this thread only
                while program is not None and program not in self._waiting:
                    self._fresh.popleft()
                    self._begin(program)
                    body(program)
                    program = self._next()
        except _Stopped:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._baton.release()

    def _begin(self, program: int) -> None:
        self.current = program
        self._enter(program)

    def _ordered(self, programs: list[int]) -> list[int]:
        if self._order is Order.RANDOM:
            self._random.shuffle(programs)
        return programs[::-1] if self._order is Order.REVERSE else programs

    def _next(self) -> int | None:
        values: dict[str, int] = {}
        ready = []
        for program, waiting in self._waiting.items():
            if waiting.place not in values:
                values[waiting.place] = waiting.read()
            if values[waiting.place] ^ waiting.seen < 0:
                ready.append(program)
        ready += [self._fresh[0]] if self._fresh else []
        if not ready:
            return None
        if self._order is Order.RANDOM:
            return self._random.choice(ready)
        return max(ready) if self._order is Order.REVERSE else min(ready)

    def _stop(self) -> None:
        self._stopped = True
        for waiting in self._waiting.values():
            waiting.go.release()
            self._baton.acquire()

    def _deadlock(self, stuck: dict[int, _Waiting]) -> DeadlockError:
        first = stuck[min(stuck)]
        return DeadlockError(
            f"{len(stuck)} of {self._count} programs wait forever, {self._count - len(stuck)} have "
            f"ended: program {min(stuck)} waits until {first.place} has another sign than "
            f"{first.seen}, but it stays {first.read()}",
            where=first.where,
        )
