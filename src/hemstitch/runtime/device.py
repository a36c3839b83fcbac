"""Device functions that generated kernels call; in Triton, for GPUs.

The programs that meet at a barrier must all be resident at once: a cooperative launch.
"""

import triton
import triton.language as tl


@triton.jit
def spin_until_at_least(pointer, value):
    """One thread polls. The emulator knows this function by its name and lets others run."""
    while tl.atomic_add(pointer, 0, sem="acquire", scope="gpu") < value:
        pass


@triton.jit
def grid_barrier(semaphore, programs):
    """Each of `programs` programs waits until all have arrived. The i32 at `semaphore` is 0 before
    the first launch; it only counts on, so it needs no reset between barriers or launches."""
    tl.debug_barrier()  # the release below is one thread's: the stores of all must come first
    arrived = tl.atomic_add(semaphore, 1, sem="release", scope="gpu")
    spin_until_at_least(semaphore, (arrived // programs + 1) * programs)
    tl.debug_barrier()
