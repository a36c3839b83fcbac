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
def copy_columns(source, result, count, stride, BLOCK: tl.constexpr):
    """The same bytes, but the compiler cannot know that neighbours are neighbours."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    places = offsets * stride
    tl.store(result + places, tl.load(source + places, mask=mask), mask=mask)


@triton.jit
def dropout_each(source, result, seed, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    values = tl.load(source + offsets, mask=mask)
    tl.store(result + offsets, tl.where(tl.rand(seed, offsets) > 0.5, values, 0.0), mask=mask)


@triton.jit
def dropout_four(source, result, seed, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    values = tl.load(source + offsets, mask=mask)
    counters = tl.program_id(0) * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    first, second, third, fourth = tl.rand4x(seed, counters)
    random = tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (BLOCK,))
    tl.store(result + offsets, tl.where(random > 0.5, values, 0.0), mask=mask)


@triton.jit
def row_sums(source, result, rows, N: tl.constexpr, PROGRAMS: tl.constexpr):
    """A persistent kernel: each program adds up every PROGRAMS-th row."""
    columns = tl.arange(0, N)
    for row in tl.range(tl.program_id(0), rows, PROGRAMS):
        values = tl.load(source + row * N + columns).to(tl.float32)
        tl.store(result + row, tl.sum(values, 0))


@triton.jit
def column_sums(source, result, rows, N: tl.constexpr, BM: tl.constexpr, PROGRAMS: tl.constexpr):
    """Three accumulators of a tile each: what many registers are needed for."""
    columns = tl.arange(0, N)
    first = tl.zeros([BM, N], tl.float32)
    second = tl.zeros([BM, N], tl.float32)
    third = tl.zeros([BM, N], tl.float32)
    for start in tl.range(tl.program_id(0) * BM, rows, PROGRAMS * BM):
        places = (start + tl.arange(0, BM))[:, None] * N + columns[None, :]
        values = tl.load(source + places).to(tl.float32)
        first += values
        second += values * values
        third += tl.exp(values)
    at = result + tl.program_id(0) * 3 * N + columns
    tl.store(at, tl.sum(first, 0))
    tl.store(at + N, tl.sum(second, 0))
    tl.store(at + 2 * N, tl.sum(third, 0))


@triton.jit
def chain(source, result, steps, BLOCK: tl.constexpr, CHAINS: tl.constexpr):
    """`steps` dependent divisions in CHAINS independent chains."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets)
    if CHAINS == 1:
        for _ in tl.range(0, steps):
            values = tl.exp2(values * 0.5) - 1.0
        tl.store(result + offsets, values)
    else:
        others = tl.load(source + offsets + 1)
        for _ in tl.range(0, steps):
            values = tl.exp2(values * 0.5) - 1.0
            others = tl.exp2(others * 0.5) - 1.0
        tl.store(result + offsets, values + others)


@triton.jit
def gather_chain(source, result, steps, BLOCK: tl.constexpr):
    """Each address depends on the value loaded before."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in tl.range(0, steps):
        places = tl.load(source + places)
    tl.store(result + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), places)


@triton.jit
def grid_barrier(semaphore, programs):
    tl.debug_barrier()
    old = tl.atomic_add(semaphore, 1, sem="release", scope="gpu")
    target = (old // programs + 1) * programs
    while tl.atomic_add(semaphore, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def centre(source, result, partial, semaphore, N: tl.constexpr, PROGRAMS: tl.constexpr, BARRIER: tl.constexpr):
    program = tl.program_id(0)
    columns = tl.arange(0, N)
    values = tl.load(source + program * N + columns)
    tl.store(partial + program, tl.sum(values, 0))
    if BARRIER:
        grid_barrier(semaphore, PROGRAMS)
    total = tl.load(partial + (program + 1) % PROGRAMS)
    tl.store(result + program * N + columns, values - total)


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
