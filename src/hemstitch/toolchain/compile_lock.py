"""Locks of compilation, and a filter of standard output for threads that compile."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, RLock, get_ident
from typing import Any

# Held while LLVM or Triton runs. A fork meanwhile would leave their locks held in the child, and an
# exit would free their tables; both wait until the kernel is compiled.
CODE_GENERATOR = RLock()
os.register_at_fork(
    before=CODE_GENERATOR.acquire,
    after_in_parent=CODE_GENERATOR.release,
    after_in_child=CODE_GENERATOR.release,
)
atexit.register(CODE_GENERATOR.acquire)


class SharedExclusiveLock:
    """A reader-writer lock. Not reentrant."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._holders = 0
        self._is_exclusive = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_exclusive)
            self._holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._holders -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_exclusive or self._holders))
            self._is_exclusive = True
        try:
            yield
        finally:
            with self._changed:
                self._is_exclusive = False
                self._changed.notify_all()


class Quiet:
    """Discards the standard output of some threads; that of the others is passed on."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: set[int] = set()
        self._stream: Any = None

    @contextmanager
    def here(self) -> Iterator[None]:
        """Discard the output of this thread."""
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
