"""Which access happens before which: vector clocks of the programs of a launch.

The stores of all threads of a program are released only up to its last `debug_barrier`, because
one thread performs the atomic for all of them.
"""

from __future__ import annotations

Clock = dict[int, int]  # how far another program's accesses are known to have happened


class Clocks:
    def __init__(self) -> None:
        self._now: dict[int, Clock] = {}
        self._fenced: dict[int, Clock] = {}
        self._released: dict[int, Clock] = {}  # by address

    def of(self, program: int) -> Clock:
        return self._now.setdefault(program, {program: 1})

    def barrier(self, program: int) -> None:
        """All threads of the program meet."""
        now = self.of(program)
        self._fenced[program] = dict(now)
        now[program] += 1

    def acquire(self, program: int, address: int) -> None:
        seen = self._released.get(address, {})
        _join(self.of(program), seen)
        _join(self._fenced.setdefault(program, {}), seen)  # the same thread passes it on

    def release(self, program: int, address: int) -> None:
        _join(self._released.setdefault(address, {}), self._fenced.get(program, {}))


def _join(clock: Clock, other: Clock) -> None:
    for program, time in other.items():
        if clock.get(program, 0) < time:
            clock[program] = time
