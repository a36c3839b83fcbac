"""Where things lie in one block of memory that what never lives together may share.

Tasks write a part of each, all as much, in order. What lies where another lay is best halved where
that was: a line that another core has written last has to come from there, and between cores that
share no cache that takes longer than from memory (docs/decisions/0072).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LINE = 64  # bytes of a cache line
LEAST_HALVED = 1 << 16  # bytes; less is moved soon


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

    def has_middle_of(self, other: _Place) -> bool:
        """Both have the same middle, give or take a line."""
        return abs(2 * (self.start - other.start) + self.bytes - other.bytes) < 2 * LINE


def place(
    lifetimes: Sequence[Lifetime], halving_room: int | None = None, line: int = LINE
) -> tuple[list[int], int]:
    """Offsets so that no two that live together overlap, and the bytes needed in all. Each starts
    on a multiple of `line`.

    Largest first, each at the lowest offset that is free through its life; and where all else that
    lies there has the same middle, if so many bytes as `halved_in` are enough for that, or as many
    as it takes without.
    """
    packed = _placed(lifetimes, None, line)
    if halving_room is not None:
        room = max(halving_room, _end(packed))
        halved = _placed(lifetimes, room, line)
        packed = halved if _end(halved) <= room else packed
    return [place.start for place in packed], _end(packed)


def _end(places: Collection[_Place]) -> int:
    return max((place.end for place in places), default=0)


def _placed(lifetimes: Sequence[Lifetime], room: int | None, line: int) -> list[_Place]:
    places: dict[int, _Place] = {}
    for number in sorted(range(len(lifetimes)), key=lambda n: -lifetimes[n].bytes):
        lifetime = lifetimes[number]
        bytes_ = -(-max(lifetime.bytes, 1) // line) * line
        occupied = {place for n, place in places.items() if _overlap(lifetimes[n], lifetime)}
        start = None
        if room is not None and bytes_ >= LEAST_HALVED:
            earlier = {place for n, place in places.items() if not _overlap(lifetimes[n], lifetime)}
            start = _halved(bytes_, occupied, earlier, room)
        places[number] = _Place(_lowest(bytes_, occupied) if start is None else start, bytes_)
    return [places[number] for number in range(len(lifetimes))]


def _lowest(bytes_: int, occupied: Collection[_Place]) -> int:
    start = 0
    for place in sorted(occupied):
        if start + bytes_ <= place.start:
            break
        start = max(start, place.end)
    return start


def _halved(
    bytes_: int, occupied: Collection[_Place], earlier: Collection[_Place], room: int
) -> int | None:
    """The lowest place, up to `room`, that nothing has `taken` and with the middle of all that is
    `left` there."""
    starts = {0} | {place.end for place in (*occupied, *earlier)}
    starts |= {place.start + (place.bytes - bytes_) // 2 // LINE * LINE for place in earlier}
    for start in sorted(starts):
        place = _Place(start, bytes_)
        if place.end > room:
            return None
        if start < 0 or any(map(place.overlaps, occupied)):
            continue
        if all(place.has_middle_of(previous) for previous in earlier if place.overlaps(previous)):
            return start
    return None


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last
