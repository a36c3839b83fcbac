"""Small Triton kernels of which each is bound by one thing. `steps` of a dependent chain, or of
independent work; results depend on all of it, so that nothing can be left out."""

from __future__ import annotations

import triton
import triton.language as tl

from hemstitch.targets.gpu import device_functions as device


@triton.jit
def nothing(result):
    pass


@triton.jit
def copy(source, result, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(result + offsets, tl.load(source + offsets, mask=mask), mask=mask)


@triton.jit
def chase(places, result, steps, BLOCK: tl.constexpr):
    """Every address is the value loaded before."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(result + offsets)
    for _ in tl.range(0, steps):
        at = tl.load(places + at)
    tl.store(result + offsets, at)


@triton.jit
def multiply_chain(result, steps, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(result + offsets)
    for _ in tl.range(0, steps):
        values = values * 0.5 + 1.0
        values = values * 0.25 + 2.0
    tl.store(result + offsets, values)


@triton.jit
def exponential_chain(result, steps, BLOCK: tl.constexpr):
    """As `multiply_chain`, with an exponential between."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(result + offsets)
    for _ in tl.range(0, steps):
        values = tl.exp2(values * 0.5 + 1.0)
        values = tl.exp2(values * 0.25 - 2.0)
    tl.store(result + offsets, values)


@triton.jit
def load_rate(source, result, steps, span, BLOCK: tl.constexpr, CACHE: tl.constexpr):
    """Loads of which none waits for another, out of `span` elements, a power of two. Were that a
    constant, ptxas would load once before the loop and only add in it; were it not said where they
    start, each thread would load its four elements one by one, far from its neighbours'."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0)
    for step in tl.range(0, steps, loop_unroll_factor=8):
        at = tl.multiple_of((first + step) * BLOCK & (span - 1), BLOCK)
        total += tl.load(source + at + lanes, cache_modifier=CACHE)
    tl.store(result + tl.program_id(0) * BLOCK + lanes, total)


@triton.jit
def store_rate(result, steps, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * 8 * BLOCK + tl.arange(0, BLOCK)
    for step in tl.range(0, steps, loop_unroll_factor=8):
        tl.store(result + lanes + (step & 7) * BLOCK, step.to(tl.float32))


@triton.jit
def sum_chain(result, steps, BLOCK: tl.constexpr):
    """Sums over all lanes: shuffles, and with several warps shared memory and barriers."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(result + offsets)
    for _ in tl.range(0, steps):
        values = values * 0.5 - tl.sum(values, 0) * 0.001
    tl.store(result + offsets, values)


@triton.jit
def block_barriers(result, steps):
    for _ in tl.range(0, steps):
        tl.debug_barrier()
    tl.store(result + tl.program_id(0), 1.0)


@triton.jit
def grid_barriers(semaphore, steps):
    programs = tl.num_programs(0)
    for _ in tl.range(0, steps):
        device.grid_barrier(semaphore, programs)


@triton.jit
def atomic_chain(counters, result, steps):
    """Each waits for the one before."""
    total = 0
    for _ in tl.range(0, steps):
        total = tl.atomic_add(counters + (total & 1), 1, sem="relaxed")
    tl.store(result + tl.program_id(0), total)


@triton.jit
def atomic_rate(counters, steps, spread, BLOCK: tl.constexpr):
    """`spread` times each program's number is where it adds."""
    lanes = tl.program_id(0) * spread + tl.arange(0, BLOCK)
    for _ in tl.range(0, steps):
        tl.atomic_add(counters + lanes, 1.0, sem="relaxed")


@triton.jit
def row_sums(source, result, rows, N: tl.constexpr, PROGRAMS: tl.constexpr):
    columns = tl.arange(0, N)
    for row in tl.range(tl.program_id(0), rows, PROGRAMS):
        tl.store(result + row, tl.sum(tl.load(source + row * N + columns), 0))


@triton.jit
def column_sums(source, result, rows, N: tl.constexpr, BM: tl.constexpr, PROGRAMS: tl.constexpr):
    columns = tl.arange(0, N)
    total = tl.zeros([BM, N], tl.float32)
    for start in tl.range(tl.program_id(0) * BM, rows, PROGRAMS * BM):
        total += tl.load(source + (start + tl.arange(0, BM))[:, None] * N + columns[None, :])
    tl.store(result + tl.program_id(0) * N + columns, tl.sum(total, 0))


@triton.jit
def dropout_each(source, result, seed, BLOCK: tl.constexpr):
    """A Philox of its own for every element."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets)
    tl.store(result + offsets, tl.where(tl.rand(seed, offsets) > 0.5, values, 0.0))
