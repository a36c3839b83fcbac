"""How much memory this process has resident, now and at most while something runs (Linux only)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK_ONLY = "5"  # of what can be cleared: the high-water mark
MEGABYTE, KIBIBYTE = 1e6, 1024


def resident() -> float:
    """Megabytes, after what is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _read("VmRSS")


def peak(run: Callable[[], object]) -> float:
    """Megabytes at most, while it runs."""
    RESET.write_text(PEAK_ONLY)
    run()
    return _read("VmHWM")


def _read(name: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * KIBIBYTE / MEGABYTE
