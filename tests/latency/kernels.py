"""Small Triton kernels whose order in speed can be argued by hand."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy(source, result, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(result + offsets, tl.load(source + offsets, mask=mask), mask=mask)


@triton.jit
def refused(source, result, BLOCK: tl.constexpr):
    """Triton accepts these two hints together, ptxas does not."""
    offsets = tl.arange(0, BLOCK)
    values = tl.load(source + offsets, cache_modifier=".cg", eviction_policy="evict_last")
    tl.store(result + offsets, values)


@triton.jit
def dropout_each(source, result, seed, BLOCK: tl.constexpr):
    """A Philox of its own for every element."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets)
    tl.store(result + offsets, tl.where(tl.rand(seed, offsets) > 0.5, values, 0.0))


@triton.jit
def dropout_four(source, result, seed, BLOCK: tl.constexpr):
    """One Philox, which gives four numbers, for four elements."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets)
    counters = tl.program_id(0) * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    first, second, third, fourth = tl.rand4x(seed, counters)
    random = tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (BLOCK,))
    tl.store(result + offsets, tl.where(random > 0.5, values, 0.0))


@triton.jit
def row_sums(source, result, rows, N: tl.constexpr, PROGRAMS: tl.constexpr):
    """Persistent: each program adds up every PROGRAMS-th row."""
    columns = tl.arange(0, N)
    for row in tl.range(tl.program_id(0), rows, PROGRAMS):
        values = tl.load(source + row * N + columns).to(tl.float32)
        tl.store(result + row, tl.sum(values, 0))


@triton.jit
def column_sums(source, result, rows, N: tl.constexpr, BM: tl.constexpr, PROGRAMS: tl.constexpr):
    """Four accumulators of a tile each: what many registers are needed for."""
    columns = tl.arange(0, N)
    first = tl.zeros([BM, N], tl.float32)
    second = tl.zeros([BM, N], tl.float32)
    third = tl.zeros([BM, N], tl.float32)
    fourth = tl.zeros([BM, N], tl.float32)
    for start in tl.range(tl.program_id(0) * BM, rows, PROGRAMS * BM):
        places = (start + tl.arange(0, BM))[:, None] * N + columns[None, :]
        values = tl.load(source + places).to(tl.float32)
        first += values
        second += values * values
        third += tl.exp(values)
        fourth = tl.maximum(fourth, values)
    at = result + tl.program_id(0) * 4 * N + columns
    tl.store(at, tl.sum(first, 0))
    tl.store(at + N, tl.sum(second, 0))
    tl.store(at + 2 * N, tl.sum(third, 0))
    tl.store(at + 3 * N, tl.sum(fourth, 0))


@triton.jit
def one_chain(source, result, steps, BLOCK: tl.constexpr):
    """Every step needs the one before."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets)
    for _ in tl.range(0, steps):
        values = tl.exp2(values * 0.5) - 1.0
    tl.store(result + offsets, values)


@triton.jit
def two_chains(source, result, steps, BLOCK: tl.constexpr):
    """Two steps at a time, which need nothing of each other."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets)
    others = values + 1.0
    for _ in tl.range(0, steps):
        values = tl.exp2(values * 0.5) - 1.0
        others = tl.exp2(others * 0.5) - 1.0
    tl.store(result + offsets, values + others)


@triton.jit
def pointer_chase(source, result, steps, BLOCK: tl.constexpr):
    """Every address is the value loaded before."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = offsets
    for _ in tl.range(0, steps):
        places = tl.load(source + places)
    tl.store(result + offsets, places)


@triton.jit
def grid_barrier(semaphore, programs):
    tl.debug_barrier()
    old = tl.atomic_add(semaphore, 1, sem="release", scope="gpu")
    goal = (old // programs + 1) * programs
    while tl.atomic_add(semaphore, 0, sem="acquire", scope="gpu") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def centre(
    source, result, partial, semaphore, N: tl.constexpr, PROGRAMS: tl.constexpr, WAIT: tl.constexpr
):
    """Rows less the sum of a neighbour's, which is only there behind the barrier."""
    program = tl.program_id(0)
    columns = tl.arange(0, N)
    values = tl.load(source + program * N + columns)
    tl.store(partial + program, tl.sum(values, 0))
    if WAIT:
        grid_barrier(semaphore, PROGRAMS)
    total = tl.load(partial + (program + 1) % PROGRAMS)
    tl.store(result + program * N + columns, values - total)


@triton.jit
def early_load(source, result, semaphore, N: tl.constexpr, PROGRAMS: tl.constexpr):
    """Wrong: it loads between its arrival and its wait."""
    columns = tl.arange(0, N)
    tl.store(result + tl.program_id(0) * N + columns, 1.0)
    tl.debug_barrier()
    old = tl.atomic_add(semaphore, 1, sem="release", scope="gpu")
    values = tl.load(source + tl.program_id(0) * N + columns)
    while (
        tl.atomic_add(semaphore, 0, sem="acquire", scope="gpu") < (old // PROGRAMS + 1) * PROGRAMS
    ):
        pass
    tl.store(result + tl.program_id(0) * N + columns, values)


@triton.jit
def last_block(source, result, partial, semaphore, N: tl.constexpr, PROGRAMS: tl.constexpr):
    """The last program to finish adds up what all have left: a ticket, no barrier."""
    program = tl.program_id(0)
    columns = tl.arange(0, N)
    tl.store(partial + program, tl.sum(tl.load(source + program * N + columns), 0))
    tl.debug_barrier()
    ticket = tl.atomic_add(semaphore, 1, sem="acq_rel", scope="gpu")
    if ticket == PROGRAMS - 1:
        tl.debug_barrier()
        total = 0.0
        for other in tl.range(0, PROGRAMS, num_stages=1):
            total += tl.load(partial + other)
        tl.store(result, total)


@triton.jit
def product(a, b, result, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left = a + rows[:, None] * K + inner[None, :]
    right = b + inner[:, None] * BN + columns[None, :]
    total = tl.zeros([BM, BN], tl.float32)
    for _ in tl.range(0, K, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK * BN
    tl.store(result + rows[:, None] * BN + columns[None, :], total)
