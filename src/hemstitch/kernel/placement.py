"""Where things lie in one block of memory that what never lives together may share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINE = 64  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`bytes` that are written first in step `first` and used last in step `last`."""

    bytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime], line: int = LINE) -> tuple[list[int], int]:
    """Offsets so that no two that live together overlap, and the bytes needed in all. Each starts
    on a multiple of `line`.

    Largest first, each at the lowest offset that is free through its life.
    """
    offsets = [0] * len(lifetimes)
    sizes = [-(-max(each.bytes, 1) // line) * line for each in lifetimes]
    placed: list[int] = []
    for number in sorted(range(len(lifetimes)), key=lambda n: -lifetimes[n].bytes):
        neighbours = [n for n in placed if _overlap(lifetimes[n], lifetimes[number])]
        start = 0
        for other in sorted(neighbours, key=lambda n: offsets[n]):
            if start + sizes[number] <= offsets[other]:
                break
            start = max(start, offsets[other] + sizes[other])
        offsets[number] = start
        placed.append(number)
    return offsets, max((start + size for start, size in zip(offsets, sizes)), default=0)


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last
