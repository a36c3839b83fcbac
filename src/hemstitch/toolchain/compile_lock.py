"""What all threads of a process share while some of them compile: a lock that many hold together or
one alone, and standard output."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, RLock, get_ident
from typing import Any

# Held while LLVM or Triton works. A fork in the middle of it would leave their locks closed in the
# child, and an exit would take their tables away; both wait until the kernel is done.
CODE_GENERATOR = RLock()
os.register_at_fork(
    before=CODE_GENERATOR.acquire,
    after_in_parent=CODE_GENERATOR.release,
    after_in_child=CODE_GENERATOR.release,
)
atexit.register(CODE_GENERATOR.acquire)


class SharedExclusiveLock:
    """Not to be taken again by a thread that has it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._together = 0
        self._is_alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_alone or self._together))
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()


class Quiet:
    """Swallows what some threads print; what others print meanwhile goes where it went before."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: set[int] = set()
        self._stream: Any = None

    @contextmanager
    def here(self) -> Iterator[None]:
        """In this thread, until the end."""
        with self._lock:
            if not self._threads:
                own: Any = self
                self._stream, sys.stdout = sys.stdout, own
            self._threads.add(get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._threads.discard(get_ident())
                if not self._threads:
                    sys.stdout = self._stream

    def write(self, text: str) -> int:
        return len(text) if get_ident() in self._threads else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
