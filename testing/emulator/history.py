"""What has happened to a byte of memory, and whether the next access races with it.

Bytes with equal pasts share one `Past`, so a launch has few of them, and an access to a whole tile
looks up one or two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from testing.emulator.clocks import Clock, Clocks

Epoch = tuple[int, int]  # a program and its time


class Access(Enum):
    READ = "reads"
    WRITE = "writes"
    ATOMIC = "updates"


@dataclass(frozen=True, slots=True)
class Past:
    """Only what is not ordered before a later access matters: a write that races with nothing
    leaves only itself. `is_garbage`: it was at first. `stored_by`: the argument whose value it is,
    where several share memory."""

    was_read: bool = False
    was_written: bool = False
    is_garbage: bool = False
    stored_by: str = ""
    reads: frozenset[Epoch] = frozenset()
    writes: frozenset[Epoch] = frozenset()
    updates: frozenset[Epoch] = frozenset()


@dataclass(frozen=True, slots=True)
class Conflict:
    """`other` did `access`, and nothing orders that before what happens now."""

    other: int
    access: Access


CONFLICTS = {
    Access.READ: (Access.WRITE, Access.ATOMIC),
    Access.WRITE: (Access.WRITE, Access.ATOMIC, Access.READ),
    Access.ATOMIC: (Access.WRITE, Access.READ),
}
UNTOUCHED, GARBAGE = 0, 1


class Histories:
    """Numbers for pasts. Without clocks nothing races, and who did something is not kept.

    `threads`: what a program stores is seen by its own loads only after a `debug_barrier`, because
    another of its threads may load it; and another may still load what it overwrites.
    """

    def __init__(self, clocks: Clocks | None, threads: bool = False) -> None:
        self.pasts = [Past(), Past(is_garbage=True)]
        self._clocks = clocks
        self._threads = threads
        self._numbers = {past: number for number, past in enumerate(self.pasts)}
        self._next: dict[int, dict[tuple[int, Access, str, bool], int]] = {}  # by program

    def after(
        self, number: int, access: Access, program: int, by: str, own: bool = True
    ) -> int | Conflict:
        """The number of the past after this access `by` an argument. `own`: each thread overwrites
        what it has loaded itself."""
        known = self._next.setdefault(0 if self._clocks is None else program, {})
        found = known.get((number, access, by, own))
        if found is None:
            past = self.pasts[number]
            clock = None if self._clocks is None else self._clocks.of(program)
            if clock is not None:
                kind = self._between_threads(past, access, (program, clock[program]), own)
                if kind is not None:
                    return Conflict(program, kind)
                if conflict := self._conflict(past, access, program, clock):
                    return conflict
            following = _extended(past, access, program, clock)
            if access is Access.WRITE:
                following = replace(following, stored_by=by)
            found = known[number, access, by, own] = self._number(following)
        return found

    def forget(self, program: int) -> None:
        """The program has learnt what others did, or a new time has begun for it."""
        self._next.pop(program, None)

    def _between_threads(self, past: Past, access: Access, now: Epoch, own: bool) -> Access | None:
        """What another thread of the program may not have done yet."""
        if self._threads and access is not Access.WRITE and now in past.writes:
            return Access.WRITE
        if self._threads and access is Access.WRITE and not own and now in past.reads:
            return Access.READ
        return None

    def _conflict(self, past: Past, access: Access, program: int, clock: Clock) -> Conflict | None:
        for kind in CONFLICTS[access]:
            for other, time in getattr(past, kind.value):
                if other != program and time > clock.get(other, 0):
                    return Conflict(other, kind)
        return None

    def _number(self, past: Past) -> int:
        number = self._numbers.setdefault(past, len(self.pasts))
        if number == len(self.pasts):
            self.pasts.append(past)
        return number


def _extended(past: Past, access: Access, program: int, clock: Clock | None) -> Past:
    was_read = past.was_read or access is not Access.WRITE
    was_written = past.was_written or access is not Access.READ
    seen = replace(past, was_read=was_read, was_written=was_written)
    if clock is None:
        return seen
    now = (program, clock[program])
    if access is Access.WRITE:
        return replace(seen, reads=frozenset(), writes=frozenset([now]), updates=frozenset())
    if access is Access.READ:
        return replace(seen, reads=_renewed(past.reads, now))
    return replace(seen, updates=_renewed(past.updates, now))


def _renewed(epochs: frozenset[Epoch], now: Epoch) -> frozenset[Epoch]:
    """A program's latest access speaks for its earlier ones."""
    return frozenset([*(epoch for epoch in epochs if epoch[0] != now[0]), now])
