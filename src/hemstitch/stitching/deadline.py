"""Until when a graph may be planned. Whatever loops over groups or statements asks now and then."""

from __future__ import annotations

from math import inf
from time import monotonic, thread_time

# Of this thread's own work, so that a machine that is busy plans no worse. The largest graphs of
# the benchmarks take 20 s; what takes longer has met something that explodes.
PLANNING_SECONDS = 60.0


class OutOfTime(Exception):
    """Planning has taken too long."""


class Deadline:
    """Begins when it is made, in the thread that plans."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds
        self._end = thread_time() + seconds
        self._soonest = monotonic() + seconds

    def check(self) -> None:
        """Raises OutOfTime. A thread works for no longer than the clock on the wall says, which is
        read at once; its own time is asked of the kernel, for up to 200 microseconds."""
        if monotonic() <= self._soonest:
            return
        left = self._end - thread_time()
        if left < 0:
            raise OutOfTime(f"planning took more than {self.seconds:g} s of the processor")
        self._soonest = monotonic() + left
