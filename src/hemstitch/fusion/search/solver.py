"""The solver in a process of its own: it can be stopped at any time, may run out of memory, and
takes nothing else with it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hemstitch.fusion.search.program import Program

# By its path and not as a module: that would import the whole compiler, and PyTorch with it.
COMMAND = (sys.executable, str(Path(__file__).with_name("milp.py")))
GRACE = 5.0  # seconds: to start, and for what the solver does between looks at its clock


@dataclass(frozen=True, slots=True)
class Answer:
    """`chosen`: the columns that are 1."""

    chosen: tuple[int, ...]
    is_optimal: bool


class Solver:
    """Starts its process when first asked, keeps it for what follows, and ends it on leaving."""

    def __init__(self, command: Sequence[str] = COMMAND, grace: float = GRACE) -> None:
        self.command = command
        self.grace = grace
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def solve(self, program: Program, seconds: float) -> Answer | None:
        """None if nothing was found in time, or the process died."""
        if seconds <= 0:
            return None
        rows = [(row.lower, row.upper, row.terms) for row in program.rows]
        question = json.dumps({"costs": program.costs, "rows": rows, "seconds": seconds})
        try:
            line = self._ask(question, seconds + self.grace)
        except OSError:  # it died before it had read the question
            line = ""
        if not line.endswith("\n"):
            self.stop()
            return None
        answer = json.loads(line)
        if answer["chosen"] is None:
            return None
        return Answer(tuple(answer["chosen"]), answer["is_optimal"])

    def _ask(self, question: str, seconds: float) -> str:
        """One line for one line; what is read ends when the watchdog kills the process."""
        process = self.process = self.process or self._start()
        assert process.stdin is not None and process.stdout is not None
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        finally:
            watchdog.cancel()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; we end it on the way out
        )

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be written any more
                    pipe.close()
        self.process = None
