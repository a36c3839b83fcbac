"""Which results a kernel stores past the caches. Takes a kernel and the buffers that begin with a
line of a cache, gives those of them that are stored so.

A processor that stores reads the line first, of which it may write a part only; past the caches it
does not, which saves a third of what x + 1 moves. But who reads the result next finds none of it in
a cache. So only a kernel that touches more than those hold stores so: what it wrote first would be
gone from them anyway (docs/decisions/0046-large-results-pass-by-the-caches.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hemstitch.kernel.nodes import Buffer, Kernel
from hemstitch.kernel.traffic import traffic

# Bytes of half as much again as the last cache that one can count on: processors report larger ones
# too, which their other tenants share. Docs as above.
LEAST = 48 << 20


def streamed(
    kernel: Kernel, aligned: Collection[Buffer], sizes: Mapping[str, int]
) -> frozenset[Buffer]:
    """`sizes`: what to expect of those that only a call knows, and "threads". What the kernel
    itself reads again stays."""
    if not aligned:
        return frozenset()
    read, written = traffic(kernel, sizes)
    if sum(read.values()) + sum(written.values()) < LEAST:
        return frozenset()
    return frozenset(buffer for buffer in aligned if buffer in written and buffer not in read)
