"""Kernels for the tests of the emulator, as a code generator could write them."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from hemstitch.targets.gpu.device_functions import grid_barrier, spin_until_flipped


@triton.jit
def cast(source, target, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(target + i, tl.load(source + i, mask=mask).to(target.dtype.element_ty), mask=mask)


@triton.jit
def cast_towards_zero(source, target, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def arithmetic(x, y, out, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OPERATION == "add":
        c = a + b
    elif OPERATION == "sub":
        c = a - b
    elif OPERATION == "mul":
        c = a * b
    elif OPERATION == "div":
        c = a / b
    elif OPERATION == "neg":
        c = -a
    elif OPERATION == "abs":
        c = tl.abs(a)
    elif OPERATION == "scaled":
        c = a * 2.5 + 1.0
    tl.store(out + i, c)


@triton.jit
def selection(x, y, out, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OPERATION == "maximum":
        c = tl.maximum(a, b)
    elif OPERATION == "minimum":
        c = tl.minimum(a, b)
    elif OPERATION == "clamp":
        c = tl.clamp(a, b - 1.0, b + 1.0)
    elif OPERATION == "where":
        c = tl.where(a < b, a, b)
    elif OPERATION == "fma":
        c = tl.fma(a, b, a)
    tl.store(out + i, c)


@triton.jit
def unary(x, out, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    if OPERATION == "exp":
        c = tl.exp(a)
    elif OPERATION == "exp2":
        c = tl.exp2(a)
    elif OPERATION == "log":
        c = tl.log(tl.abs(a))
    elif OPERATION == "erf":
        c = tl.erf(a)
    elif OPERATION == "rsqrt":
        c = tl.rsqrt(tl.abs(a))
    elif OPERATION == "sin":
        c = tl.sin(a)
    elif OPERATION == "sigmoid":
        c = tl.sigmoid(a)
    elif OPERATION == "floor":
        c = tl.floor(a)
    tl.store(out + i, c)


@triton.jit
def product(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    left = tl.load(a + m * K + tl.arange(0, K)[None, :])
    right = tl.load(b + tl.arange(0, K)[:, None] * N + n)
    total = tl.dot(left, right, input_precision=PRECISION, out_dtype=out.dtype.element_ty)
    tl.store(out + m * N + n, total)


@triton.jit
def _merge_moments(count, mean, squares, other_count, other_mean, other_squares):
    total = count + other_count
    delta = other_mean - mean
    weight = tl.where(total == 0.0, 0.0, other_count / total)
    return (
        total,
        mean + delta * weight,
        squares + other_squares + delta * delta * count * weight,
    )


@triton.jit
def welford(x, mean, variance, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < N
    value = tl.load(x + row * N + i, mask=mask, other=0.0)
    count = mask.to(tl.float32)
    total, average, squares = tl.reduce(
        (count, value, tl.zeros([BLOCK], tl.float32)), 0, _merge_moments
    )
    tl.store(mean + row, average)
    tl.store(variance + row, squares / total)


@triton.jit
def _merge_softmax(peak, total, other_peak, other_total):
    top = tl.maximum(peak, other_peak)
    return top, total * tl.exp(peak - top) + other_total * tl.exp(other_peak - top)


@triton.jit
def online_softmax(x, peak, total, N: tl.constexpr, ROWS: tl.constexpr):
    i = tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + i)
    top, summed = tl.reduce((value, tl.full([ROWS, N], 1.0, tl.float32)), 1, _merge_softmax)
    tl.store(peak + tl.arange(0, ROWS), top)
    tl.store(total + tl.arange(0, ROWS), summed)


@triton.jit
def first_and_largest(x, where, value, N: tl.constexpr, ROWS: tl.constexpr):
    block = tl.load(x + tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(where + tl.arange(0, ROWS), tl.argmax(block, 1))
    largest, place = tl.max(block, 1, return_indices=True)
    tl.store(value + tl.arange(0, ROWS), largest)
    tl.store(where + ROWS + tl.arange(0, ROWS), place.to(tl.int32))


@triton.jit
def extremes(x, out, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.max(value, 0))
    tl.store(out + 1, tl.min(value, 0))
    tl.store(out + 2, tl.sum(value, 0))


@triton.jit
def all_axes(x, out, N: tl.constexpr):
    block = tl.load(x + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out, tl.sum(block))
    tl.store(out + 1, block.sum(1).sum(0))
    columns = tl.sum(block, 0, keep_dims=True)
    tl.store(out + 2, tl.max(tl.max(columns, 1), 0))
    rows = tl.sum(block, axis=-1)
    tl.store(out + 3, tl.max(rows, 0))


@triton.jit
def _decay(weight, value, other_weight, other_value):
    return weight * other_weight, value * other_weight + other_value


@triton.jit
def scans(x, weight, summed, linear, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(summed + i, tl.cumsum(value, 0, reverse=REVERSE))
    _, recurrent = tl.associative_scan((tl.load(weight + i), value), 0, _decay, reverse=REVERSE)
    tl.store(linear + i, recurrent)


@triton.jit
def control_flow(out, n, threshold, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i >= 2 and not (i >= 6 or i == 3)
    total = tl.zeros([BLOCK], tl.int32)
    for step in range(0, n, 2):
        if step < 4 and n > 1:
            total += step
    for step in tl.range(n - 1, n):
        total += step * 100
    for step in tl.static_range(2):
        total += step * 1000
    tl.static_assert(threshold.dtype == tl.float32)
    tl.store(out + i, tl.where(inside, total, -1))


@triton.jit
def integers(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(out + i, a // b)
    tl.store(out + N + i, a % b)
    tl.store(out + 2 * N + i, a >> 1)
    tl.store(out + 3 * N + i, ~a)
    tl.store(out + 4 * N + i, a * 65537)


@triton.jit
def inverted(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, ~tl.load(x + i))


@triton.jit
def high_words(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))


@triton.jit
def uniform(out, raw, seed, first, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    offset = first + i
    tl.store(out + i, tl.rand(seed, offset, 7))
    w0, w1, w2, w3 = tl.philox(seed, offset, offset * 0, offset * 0, offset * 0, 7)
    tl.store(raw + i * 4, w0)
    tl.store(raw + i * 4 + 1, w1)
    tl.store(raw + i * 4 + 2, w2)
    tl.store(raw + i * 4 + 3, w3)


@triton.jit
def library(x, y, out, NAME: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if NAME == "tanh":
        c = libdevice.tanh(a)
    elif NAME == "pow":
        c = libdevice.pow(a, b)
    elif NAME == "fma":
        c = libdevice.fma(a, b, 1.0)
    elif NAME == "isnan":
        c = tl.where(libdevice.isnan(a), 1.0, 0.0)
    elif NAME == "yn":
        c = libdevice.yn(1, b)
    elif NAME == "half":
        c = libdevice.tanh(a.to(tl.float16))
    tl.store(out + i, c)


# Memory and synchronisation.


@triton.jit
def scaled(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) * factor, mask=mask)


@triton.jit
def row_column_elementwise(
    x, out, partial, column, semaphore, M, N, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
    PADDED: tl.constexpr, BARRIERS: tl.constexpr,
):  # fmt: skip
    """r = x / rowsum(x); out = r / colsum(r), in one launch."""
    program = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    inside = n < N
    total = tl.zeros([BLOCK], tl.float32)
    for row in tl.range(program, M, PROGRAMS):
        value = tl.load(x + row * N + n, mask=inside, other=0.0)
        total += value / tl.sum(value, 0)
    tl.store(partial + program * N + n, total, mask=inside)
    if BARRIERS > 0:
        grid_barrier(semaphore, PROGRAMS)
    p = tl.arange(0, PADDED)
    for j in tl.range(program, N, PROGRAMS):
        part = tl.load(partial + p * N + j, mask=p < PROGRAMS, other=0.0)
        tl.store(column + j, tl.sum(part, 0))
    if BARRIERS > 1:
        grid_barrier(semaphore, PROGRAMS)
    columns = tl.load(column + n, mask=inside, other=1.0)
    for row in tl.range(program, M, PROGRAMS):
        value = tl.load(x + row * N + n, mask=inside, other=0.0)
        tl.store(out + row * N + n, value / tl.sum(value, 0) / columns, mask=inside)


@triton.jit
def barrier_for_some(out, semaphore, REACHED: tl.constexpr, PROGRAMS: tl.constexpr):
    program = tl.program_id(0)
    if program < REACHED:
        grid_barrier(semaphore, PROGRAMS)
    tl.store(out + program, program)


@triton.jit
def last_block_sums(
    x, part, out, ticket, N: tl.constexpr, BLOCK: tl.constexpr, SEM: tl.constexpr,
    FENCED: tl.constexpr, SCOPE: tl.constexpr,
):  # fmt: skip
    """The last program to take a ticket sums what the others have left."""
    program = tl.program_id(0)
    tl.store(part + program, tl.sum(tl.load(x + program * BLOCK + tl.arange(0, BLOCK)), 0))
    if FENCED:
        tl.debug_barrier()
    if tl.atomic_add(ticket, 1, sem=SEM, scope=SCOPE) == N - 1:
        tl.debug_barrier()
        tl.store(out, tl.sum(tl.load(part + tl.arange(0, N)), 0))


@triton.jit
def turns(out, tokens):
    """The programs write one after the other, the highest number first. `tokens`: for one more."""
    program = tl.program_id(0)
    if program < tl.num_programs(0) - 1:
        spin_until_flipped(tokens + program + 1, 0)
    tl.debug_barrier()
    tl.store(out, program)
    tl.debug_barrier()
    tl.atomic_add(tokens + program, -1, sem="release", scope="gpu")


@triton.jit
def same_element(out, BLOCK: tl.constexpr, EQUAL: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = i * 0 if EQUAL else i
    tl.store(out + i // 2, value)


@triton.jit
def atomic_sum_of_one(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.zeros([1], tl.int32))
    tl.atomic_add(out + tl.arange(0, BLOCK), value, sem="relaxed")


@triton.jit
def atomic_sum(x, out, BLOCK: tl.constexpr, READ: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out + tl.arange(0, BLOCK), value, sem="relaxed")
    if READ:
        tl.store(x + tl.program_id(0) * BLOCK, tl.load(out))


@triton.jit
def through_neighbour(x, out, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """Reads its own block, then writes that of a neighbour."""
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + program * BLOCK + i)
    tl.store(out + (program + SHIFT) % tl.num_programs(0) * BLOCK + i, value)


@triton.jit
def bytes_of_words(words, halves, BLOCK: tl.constexpr):
    """Program 0 writes words, program 1 the upper half of one of them."""
    if tl.program_id(0) == 0:
        tl.store(words + tl.arange(0, BLOCK), tl.arange(0, BLOCK))
    else:
        tl.store(words.to(tl.pointer_type(tl.int16)) + halves, halves.to(tl.int16))


@triton.jit
def reversed_through_memory(x, scratch, out, BLOCK: tl.constexpr, FENCED: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(scratch + i, tl.load(x + i))
    if FENCED:
        tl.debug_barrier()
    tl.store(out + i, tl.load(scratch + BLOCK - 1 - i))


@triton.jit
def spins_by_itself(token):
    while tl.atomic_add(token, 0, sem="acquire", scope="gpu") < 1:
        pass


@triton.jit
def fails(out, FAILS: tl.constexpr):
    tl.store(out, 1.0)
    tl.static_assert(not FAILS, "on purpose")


@triton.jit
def two_scratches(first, second, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(first + i, i.to(tl.float32))
    tl.store(second + i, i.to(tl.float32))
    tl.store(out + i, tl.load(second + i))
    tl.store(out + i, tl.load(first + i))


@triton.jit
def rows_through_memory(
    x, scratch, out,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, FENCED: tl.constexpr,
):  # fmt: skip
    """Each row reversed, by way of the same memory."""
    i = tl.arange(0, BLOCK)
    for row in tl.range(0, ROWS):
        tl.store(scratch + i, tl.load(x + row * BLOCK + i))
        tl.debug_barrier()
        tl.store(out + row * BLOCK + i, tl.load(scratch + BLOCK - 1 - i))
        if FENCED:
            tl.debug_barrier()


@triton.jit
def sums_in_memory(x, sums, BLOCK: tl.constexpr, FENCED: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(sums + i, tl.zeros([BLOCK], tl.float32))
    if FENCED:
        tl.debug_barrier()
    tl.atomic_add(sums + i, tl.load(x + i), sem="relaxed")


@triton.jit
def in_place(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) * 2)
