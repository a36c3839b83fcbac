"""Placement of allocations in one block of memory. Allocations with disjoint lifetimes may overlap.

Each task writes a contiguous part of every allocation, in task order. So allocations that overlap
should have the same middle: then each core finds in its cache the lines that it wrote before. A
line in another core's cache takes longer than one from memory (docs/design/memory.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hemstitch.machine.cpu_numbers import CPU


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An allocation of `bytes`, live from step `first` to step `last`."""

    bytes: int
    first: int
    last: int


class _Place(NamedTuple):
    """`bytes` from `start` on."""

    start: int
    bytes: int

    @property
    def end(self) -> int:
        return self.start + self.bytes

    def overlaps(self, other: _Place) -> bool:
        return self.start < other.end and other.start < self.end

    def has_middle_of(self, other: _Place) -> bool:
        """The middles are less than a cache line apart."""
        return abs(2 * (self.start - other.start) + self.bytes - other.bytes) < 2 * CPU.line_bytes


def place(
    lifetimes: Sequence[Lifetime], halving_room: int | None = None, line: int = CPU.line_bytes
) -> tuple[list[int], int]:
    """Offsets of allocations, multiples of `line`, and the total bytes. Allocations that are live
    together do not overlap.

    The largest allocation is placed first, each at the lowest free offset. If `halving_room` bytes
    suffice, or as many as without that, an allocation overlaps only those with its middle.
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
        if room is not None and bytes_ >= CPU.halved_bytes:
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
    """The lowest free place, up to `room`, with the same middle as the `earlier` ones that it
    overlaps, or None."""
    starts = {0} | {place.end for place in (*occupied, *earlier)}
    starts |= {
        place.start + (place.bytes - bytes_) // 2 // CPU.line_bytes * CPU.line_bytes
        for place in earlier
    }
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
