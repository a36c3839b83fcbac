"""The few numbers of a processor that planning and scheduling know.

Sources: docs/performance.md. They rank candidates; no result ever depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes, rates per second, times in seconds."""

    threads: int
    lanes: int  # f32 elements a vector instruction works on
    l1_bytes: int
    l2_bytes: int
    operations_per_second: float  # vector instructions of one thread
    memory_bytes_per_second: float  # of all threads together, beyond the caches
    cache_bytes_per_second: float  # of one thread, out of L2
    launch_seconds: float
    barrier_seconds: float


def generic_cpu(threads: int, lanes: int) -> Machine:
    """A present-day core: 3.5 GHz, two vector instructions a cycle."""
    return Machine(
        threads=threads,
        lanes=lanes,
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        operations_per_second=7e9,
        memory_bytes_per_second=20e9 * min(threads, 8),
        cache_bytes_per_second=60e9,
        launch_seconds=2e-6,
        barrier_seconds=1e-6,
    )
