"""Processes that compile while this one prints the next kernel: as many texts at once as there are
threads. Texts in, object files out.

Processes, since llvmlite lets one thread at a time into LLVM. Not `multiprocessing`, which runs the
user's main module again in each.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from hemstitch.runtime import objects

# Whatever this process finds its modules by, the helper does.
START = """
import runpy, sys
path, *sys.path[:] = sys.argv[1:]
runpy.run_path(path, run_name="__main__")
"""


class Helpers:
    """For one graph: they end with it. A helper that cannot start, or is gone, is made up for by
    this process. `alone`: compiles here."""

    def __init__(self, most: int, alone: Callable[[str], bytes]) -> None:
        self._alone = alone
        self._own = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(most, "hemstitch-helper")
        self._begun: dict[str, Future[bytes]] = {}

    def close(self) -> None:
        """Whatever was begun is of no use any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:  # a fork may hold their pipes open: they are not waited for
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.communicate()

    def begin(self, text: str) -> None:
        """Have it compiled; a text once."""
        if text not in self._begun:
            self._begun[text] = self._threads.submit(self._compiled, text)

    def compiled(self, text: str) -> bytes:
        """Raises RuntimeError if LLVM refuses the text."""
        begun = self._begun.pop(text, None)
        if begun is not None:
            with suppress(OSError, EOFError):
                return begun.result()
        return self._alone(text)

    def _compiled(self, text: str) -> bytes:
        """In one of the threads, by its helper."""
        process = self._process()
        assert process.stdin is not None and process.stdout is not None
        objects.send(process.stdin, text.encode())
        is_good, content = objects.receive(process.stdout)
        if not is_good:
            raise RuntimeError(content.decode())
        return content

    def _process(self) -> subprocess.Popen[bytes]:
        if not hasattr(self._own, "process"):
            command = [sys.executable, "-c", START, objects.__file__, *sys.path]
            self._own.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._processes.append(self._own.process)
        process: subprocess.Popen[bytes] = self._own.process
        return process


def may_start() -> bool:
    """Whether this process knows a Python to start: one that is embedded may be told itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)
