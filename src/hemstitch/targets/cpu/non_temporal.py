"""Which results a kernel stores past the caches. Takes a kernel and the buffers that begin with a
line of a cache, gives those of them that are stored so.

A processor that stores reads the line first, of which it may write a part only; past the caches it
does not, which saves a third of what x + 1 moves. But who reads the result next finds none of it in
a cache. So only a kernel that touches more than those hold stores so: what it wrote first would be
gone from them anyway (docs/design/code-generation-for-cpus.md).
"""

from __future__ import annotations

from dataclasses import replace

from hemstitch.kernel_ir.nodes import Kernel
from hemstitch.kernel_ir.traffic import traffic
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu.description import CPULowering

# Bytes of half as much again as the last cache that one can count on: processors report larger ones
# too, which their other tenants share. Docs as above.


def mark_non_temporal_stores(kernel: Kernel, lowering: CPULowering) -> Kernel:
    """The same kernel, `non_temporal` filled in. What the kernel itself reads again stays in the
    caches."""
    if not lowering.aligned:
        return kernel
    read, written = traffic(kernel, lowering.sizes)
    if sum(read.values()) + sum(written.values()) < CPU.non_temporal_bytes:
        return kernel
    buffers = (b for b in lowering.aligned if b in written and b not in read)
    return replace(kernel, non_temporal=frozenset(buffers))
