"""Kernels that crashed the compiler are not compiled again, by this process or, with the cache, by
later ones of the same versions. Takes a key and a function that compiles, gives machine code or
raises WorkerDied."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from hemstitch.cache.records import evict_oldest, folder, load_record, store_record
from hemstitch.workers.worker import WorkerDied

MAX_BYTES = 1 << 20  # bytes of all files
CRASHES: dict[str, str] = {}  # by the kernels' keys: how the compiler ended


def crash_of(key: str, *, cache: bool) -> str | None:
    """How this kernel crashed the compiler, if it did. `key`: all that machine code depends on.
    `cache`: also look for crashes of other processes."""
    if key not in CRASHES and cache and isinstance(end := load_record(_place(key)), str):
        CRASHES[key] = end
    return CRASHES.get(key)


def compile_unless_crashed(key: str, make: Callable[[], bytes], *, cache: bool) -> bytes:
    end = crash_of(key, cache=cache)
    if end is not None:
        raise WorkerDied(end)
    try:
        return make()
    except WorkerDied as error:
        CRASHES[key] = str(error)
        if cache:
            store_record(_place(key), str(error))
            evict_oldest(_place(key).parent, MAX_BYTES)
        raise


def _place(key: str) -> Path:
    return folder("killed") / sha256(key.encode()).hexdigest()
