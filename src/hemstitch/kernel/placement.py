"""Where things lie in one block of memory that what never lives together may share.

Tasks write a part of each, all as much, in order. What lies where another lay is best divided where
that was: a line that another core has written last has to come from there, and between cores that
share no cache that takes longer than from memory (docs/decisions/0072).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LINE = 64  # bytes of a cache line
LEAST_DIVIDED = 1 << 16  # bytes; less is moved soon


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`bytes` that are written first in step `first` and used last in step `last`."""

    bytes: int
    first: int
    last: int


class _Place(NamedTuple):
    """So many `bytes` from `start` on."""

    start: int
    bytes: int

    @property
    def end(self) -> int:
        return self.start + self.bytes

    def overlaps(self, other: _Place) -> bool:
        return self.start < other.end and other.start < self.end

    def is_divided_as(self, other: _Place, tasks: int) -> bool:
        """The parts of tasks meet where those of `other` do: of two, in the middle, give or take a
        line; of more only if it is the same place."""
        apart = 2 * (self.start - other.start) + self.bytes - other.bytes
        return self == other or (tasks == 2 and abs(apart) < 2 * LINE)


def place(
    lifetimes: Sequence[Lifetime], tasks: int = 1, room: int = 0, line: int = LINE
) -> tuple[list[int], int]:
    """Offsets so that no two that live together overlap, and the bytes needed in all. Each starts
    on a multiple of `line`.

    Largest first, each at the lowest offset that is free through its life; and, of several `tasks`,
    that is divided among them as all that lies there at other times, if that takes no more than
    `room` bytes or than the first way does.
    """
    packed = _placed(lifetimes, 1, 0, line)
    if tasks > 1:
        room = max(room, _end(packed))
        divided = _placed(lifetimes, tasks, room, line)
        packed = divided if _end(divided) <= room else packed
    return [place.start for place in packed], _end(packed)


def _end(places: Collection[_Place]) -> int:
    return max((place.end for place in places), default=0)


def _placed(lifetimes: Sequence[Lifetime], tasks: int, room: int, line: int) -> list[_Place]:
    places: dict[int, _Place] = {}
    for number in sorted(range(len(lifetimes)), key=lambda n: -lifetimes[n].bytes):
        own = lifetimes[number]
        bytes_ = -(-max(own.bytes, 1) // line) * line
        taken = {place for n, place in places.items() if _overlap(lifetimes[n], own)}
        start = None
        if tasks > 1 and bytes_ >= LEAST_DIVIDED:
            left = {place for n, place in places.items() if not _overlap(lifetimes[n], own)}
            start = _divided(bytes_, taken, left, tasks, room)
        places[number] = _Place(_lowest(bytes_, taken) if start is None else start, bytes_)
    return [places[number] for number in range(len(lifetimes))]


def _lowest(bytes_: int, taken: Collection[_Place]) -> int:
    start = 0
    for other in sorted(taken):
        if start + bytes_ <= other.start:
            break
        start = max(start, other.end)
    return start


def _divided(
    bytes_: int, taken: Collection[_Place], left: Collection[_Place], tasks: int, room: int
) -> int | None:
    """The lowest place, up to `room`, that nothing has `taken` and that is divided as all that is
    `left` there."""
    starts = {0} | {place.end for place in (*taken, *left)} | {place.start for place in left}
    if tasks == 2:
        starts |= {place.start + (place.bytes - bytes_) // 2 // LINE * LINE for place in left}
    for start in sorted(starts):
        place = _Place(start, bytes_)
        if place.end > room:
            return None
        if start < 0 or any(map(place.overlaps, taken)):
            continue
        if all(place.is_divided_as(other, tasks) for other in left if place.overlaps(other)):
            return start
    return None


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last
