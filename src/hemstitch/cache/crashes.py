"""Kernels that ended the compiler are never tried again: not by this process, and where the cache
is on by no later one of the same versions. Takes a key and what makes machine code, gives that, or
raises Ended."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from hemstitch.cache.records import folder, forget_oldest, recall, remember
from hemstitch.workers.worker import Ended

MAX_BYTES = 1 << 20  # bytes of all files
ENDS: dict[str, str] = {}  # by the kernels' keys: how they ended the compiler


def end_of(key: str, *, cache: bool) -> str | None:
    """How this kernel ended the compiler, if it did. `key`: says all that machine code depends on.
    `cache`: whether other processes are asked."""
    if key not in ENDS and cache and isinstance(end := recall(_place(key)), str):
        ENDS[key] = end
    return ENDS.get(key)


def unless_killed(key: str, make: Callable[[], bytes], *, cache: bool) -> bytes:
    end = end_of(key, cache=cache)
    if end is not None:
        raise Ended(end)
    try:
        return make()
    except Ended as error:
        ENDS[key] = str(error)
        if cache:
            remember(_place(key), str(error))
            forget_oldest(_place(key).parent, MAX_BYTES)
        raise


def _place(key: str) -> Path:
    return folder("killed") / sha256(key.encode()).hexdigest()
