"""What a measurement was made on: gives a record of the machine and of the versions, and keeps
page faults out of a measurement where that is asked for."""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
KIBIBYTE = 1024
USUAL_BYTES = {2: 1 << 20, 3: 32 << 20}  # where the system does not say
# From malloc.h: never map a block on its own; never give memory back to the system.
M_MMAP_MAX, M_TRIM_THRESHOLD = -4, -1
PACKAGES = ("hemstitch", "torch", "llvmlite", "numpy")


def cache_bytes(level: int) -> int:
    """The size of the data cache of one core at this level."""
    for entry in sorted(CACHES.glob("index*")):
        if (entry / "level").read_text().strip() == str(level):
            return int((entry / "size").read_text().strip().removesuffix("K")) * KIBIBYTE
    return USUAL_BYTES[level]


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "L2 bytes": cache_bytes(2),
        "L3 bytes": cache_bytes(3),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
    }


def keep_pages() -> None:
    """From now on freed memory is used again, and not mapped and faulted in anew (glibc only)."""
    library = ctypes.CDLL(None)
    if not (library.mallopt(M_MMAP_MAX, 0) and library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)):
        raise OSError("this system's malloc cannot be told to keep its pages")


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
