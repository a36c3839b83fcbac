"""The time limit of planning a graph. Every loop over groups or statements checks it."""

from __future__ import annotations

from math import inf
from time import monotonic, thread_time

# CPU time of the planning thread, so that a busy machine makes the same plans. The largest
# benchmark graphs take 20 s; more time indicates exponential growth.
PLANNING_SECONDS = 60.0


class OutOfTime(Exception):
    """Planning has taken too long."""


class Deadline:
    """Starts on construction, in the thread that plans."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds
        self._end = thread_time() + seconds
        self._soonest = monotonic() + seconds

    def check(self) -> None:
        """Raises OutOfTime. The thread's CPU time is queried only once the wall clock allows it to
        be over, since the query takes up to 200 microseconds."""
        if monotonic() <= self._soonest:
            return
        left = self._end - thread_time()
        if left < 0:
            raise OutOfTime(f"planning took more than {self.seconds:g} s of the processor")
        self._soonest = monotonic() + left
