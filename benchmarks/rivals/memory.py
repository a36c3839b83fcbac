"""How much memory this process has resident, now and at most while something runs (Linux only)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK_ONLY = "5"  # of what can be cleared: the high-water mark
MEGABYTE, KIBIBYTE = 1e6, 1024
TRIES = 10


def resident() -> float:
    """Megabytes, after what is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _read("VmRSS")


def peak(run: Callable[[], object]) -> float:
    """Megabytes at most, while it runs."""
    _reset()
    run()
    return _read("VmHWM")


def _reset() -> None:
    """Asked for again where the old mark still stands: seen once in some hundred times."""
    for _ in range(TRIES):
        RESET.write_text(PEAK_ONLY)
        if _read("VmHWM") <= _read("VmRSS") + 1:
            return
    raise RuntimeError(f"{RESET} does not lower the process's high-water mark")


def _read(name: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * KIBIBYTE / MEGABYTE
