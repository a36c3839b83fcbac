"""The solver in a worker process: it can be stopped at any time, and may run out of memory without
harm to this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hemstitch.planning.search.integer_program import IntegerProgram
from hemstitch.workers.worker import CannotStart, Limits, RefusedQuestion, Worker, WorkerDied

SOLVER = Path(__file__).with_name("milp.py")
# It has its own clock; NumPy's threads reserve more addresses than it uses.
LIMITS = Limits(processor_seconds=3600.0, seconds=3600.0)
GRACE = 5.0  # seconds between two checks of the solver's clock, at most


@dataclass(frozen=True, slots=True)
class Answer:
    """`chosen`: the columns that are 1."""

    chosen: tuple[int, ...]
    is_optimal: bool


class Solver:
    """Starts its process with the first program, reuses it, and ends it on exit."""

    def __init__(self, path: Path = SOLVER, grace: float = GRACE) -> None:
        self.path = path
        self.grace = grace
        self.worker: Worker | None = None

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def solve(self, program: IntegerProgram, seconds: float) -> Answer | None:
        """None if there is no solution at the time limit, or the process died."""
        if seconds <= 0:
            return None
        rows = [(row.lower, row.upper, row.terms) for row in program.rows]
        question = json.dumps({"costs": program.costs, "rows": rows, "seconds": seconds})
        try:
            self.worker = self.worker or Worker(self.path, LIMITS)
            answer = json.loads(self.worker.ask(question.encode(), seconds + self.grace))
        except (CannotStart, WorkerDied, RefusedQuestion):
            self.stop()
            return None
        if answer["chosen"] is None:
            return None
        return Answer(tuple(answer["chosen"]), answer["is_optimal"])

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker = None
