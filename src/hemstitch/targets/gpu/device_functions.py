"""Device functions that printed kernels call. Values are tiles; NaN, integers and shifts follow
PyTorch. Triton compiles them together with the kernel."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.core import builtin
from triton.language.extra import libdevice

# --- all programs of a launch


@triton.jit
def spin_until_flipped(pointer, arrival):
    """One thread polls until the sign is not that of `seen`. The emulator knows this function by
    its name and lets others run."""
    while (tl.atomic_add(pointer, 0, sem="acquire", scope="gpu") ^ arrival) >= 0:
        pass


@triton.jit
def grid_barrier(semaphore, programs):
    """Each of `programs` programs waits until all have arrived. All together they add 2^31 to the
    i32 at `semaphore`, one of them what the others leave of it. So its sign flips when the last one
    is there, and its other bits are zero again, for launches of any number of programs: nobody
    has to reset or count anything (CUDA's cooperative groups do the same)."""
    tl.debug_barrier()  # the release below is one thread's: the stores of all must come first
    added = tl.where(tl.program_id(0) == 0, 2147483647 - programs + 2, 1)
    arrival = tl.atomic_add(semaphore, added, sem="release", scope="gpu")
    spin_until_flipped(semaphore, arrival)
    tl.debug_barrier()


@triton.jit
def is_last(semaphore, programs):
    """Whether all other programs have been here: then this one sees what they have stored, and
    leaves the i32 at `semaphore` at 0."""
    tl.debug_barrier()  # as in `grid_barrier`: one thread releases the stores of all
    arrivals = tl.atomic_add(semaphore, 1, sem="acq_rel", scope="gpu")
    last = (arrivals & 2147483647) == programs - 1  # whatever sign barriers have left
    if last:
        tl.atomic_xchg(semaphore, 0, sem="relaxed", scope="gpu")
    tl.debug_barrier()
    return last


# --- combining two values, also as the operator of a reduction


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def arg_maximum(a, a_at, b, b_at):
    """The greater value with its position; NaN wins; of equals the smaller position."""
    a_wins = (a > b) | ((a != a) & (b == b))
    b_wins = (b > a) | ((b != b) & (a == a))
    take = b_wins | (~a_wins & (b_at < a_at))
    return tl.where(take, b, a), tl.where(take, b_at, a_at)


@triton.jit
def arg_minimum(a, a_at, b, b_at):
    a_wins = (a < b) | ((a != a) & (b == b))
    b_wins = (b < a) | ((b != b) & (a == a))
    take = b_wins | (~a_wins & (b_at < a_at))
    return tl.where(take, b, a), tl.where(take, b_at, a_at)


# --- floats


@builtin
def is_nvidia(_semantic: Any = None) -> tl.constexpr:
    """What it is compiled for. The emulator, which runs no assembly, says no."""
    return tl.constexpr(_semantic.builder.options.backend_name == "cuda")


@triton.jit
def nearest_bfloat16(x):
    """Of f32, as f32. NVIDIA's instruction that rounds two is plain arithmetic, and with a zero
    beside it the result is f32 at once; the one for a single element, which Triton would take, goes
    through the unit that computes exp."""
    if is_nvidia():
        return tl.inline_asm_elementwise(
            "{ .reg .f32 zero; mov.f32 zero, 0f00000000; cvt.rn.bf16x2.f32 $0, $1, zero; }",
            "=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def packed_bfloat16(x):
    """The same for what is added to or multiplied with bf16: two of them in one register."""
    if is_nvidia() and x.numel > 1:
        both = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;",
            "=r,r,r",
            [x],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
        return both.to(tl.float32)
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def reciprocal(x):
    return tl.div_rn(tl.full(x.shape, 1.0, x.dtype), x)


@triton.jit
def sigmoid(x):
    """Of f32, as eager has it. The divisor is at least 1, where an approximate quotient is within
    two units of the last place, and one instruction."""
    return libdevice.fast_dividef(1.0, 1.0 + libdevice.exp(-x))


@triton.jit
def tanh(x):
    """Of f32: as NVIDIA's library has it, but without a branch, so that loads that come after it
    may begin before it."""
    size = tl.abs(x)
    large = 1.0 - libdevice.fast_dividef(2.0, 1.0 + libdevice.exp(size + size))
    square = x * x
    series = tl.fma(square, 1.57394409e-2, -5.23039624e-2)
    series = tl.fma(series, square, 1.33152977e-1)
    series = tl.fma(series, square, -3.33327681e-1)
    small = tl.fma(series * square, x, x)
    return tl.where(size >= 0.55, libdevice.copysign(large, x), small)


@triton.jit
def coarse_sigmoid(x):
    """Of f32, good for 16 bits."""
    return libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-x))


@triton.jit
def coarse_tanh(x):
    """Of f32, good for 16 bits. Of small numbers a quotient would not be."""
    square = x * x
    power = libdevice.fast_expf(-2.0 * tl.abs(x))
    large = libdevice.copysign(libdevice.fast_dividef(1.0 - power, 1.0 + power), x)
    return tl.where(square > 9e-4, large, tl.fma(square * x, -0.333333343, x))


@triton.jit
def sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(x.dtype)


@triton.jit
def remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def _floored(plain, a, b):
    rest = libdevice.fmod(a, b)
    exact = (a - rest) / b
    exact = tl.where((rest != 0) & ((b < 0) != (rest < 0)), exact - 1.0, exact)
    floor = tl.floor(exact)
    floor = tl.where(exact - floor > 0.5, floor + 1.0, floor)
    floor = tl.where(exact != 0, floor, libdevice.copysign(tl.zeros_like(plain), plain))
    return tl.where(b == 0, plain, floor)


@triton.jit
def floor_divide(a, b):
    """CPython's way, which PyTorch follows: from the exact remainder, not from a rounded a / b."""
    return _floored(tl.div_rn(a, b), a, b)


@triton.jit
def floor_divide_double(a, b):
    return _floored(a / b, a, b)


# --- integers; 0 where the divisor is 0


@triton.jit
def integer_sign(x):
    return tl.where(x > 0, 1, tl.where(x < 0, -1, 0)).to(x.dtype)


@triton.jit
def integer_quotient(a, b):
    divisor = tl.where(b == 0, 1, b).to(b.dtype)
    return tl.where(b == 0, 0, a // divisor).to(a.dtype)


@triton.jit
def integer_rest(a, b):
    return tl.where(b == 0, 0, a - integer_quotient(a, b) * b).to(a.dtype)


@triton.jit
def integer_floor_divide(a, b):
    quotient = integer_quotient(a, b)
    rest = a - quotient * b
    return tl.where((b != 0) & (rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient).to(
        a.dtype
    )


@triton.jit
def integer_remainder(a, b):
    rest = integer_rest(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest).to(a.dtype)


@triton.jit
def rest_of_size(a, b):
    """a - b * floor(a / b) for a positive b."""
    rest = a % b
    return rest + tl.where(rest < 0, b, 0)


@triton.jit
def quotient_of_size(a, b):
    """floor(a / b) for a positive b."""
    return (a - rest_of_size(a, b)) // b


@triton.jit
def shift_left(a, b):
    """0 where the amount is negative or too large."""
    fits = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(fits, a << tl.where(fits, b, 0).to(b.dtype), 0).to(a.dtype)


@triton.jit
def shift_right(a, b):
    """As far as it goes where the amount is negative or too large."""
    last = a.dtype.primitive_bitwidth - 1
    fits = (b >= 0) & (b <= last)
    shifted = a >> tl.where(fits, b, last).to(b.dtype)
    if a.dtype.is_int_unsigned():
        return tl.where(fits, shifted, 0).to(a.dtype)
    return shifted


@triton.jit
def integer_power(x, exponent):
    """By squaring. A negative exponent takes 1 to 1, -1 to 1 or -1, and all other bases to 0."""
    negative = exponent < 0
    is_unit = (x == 1) | (x == -1)
    base = tl.where(is_unit | ~negative, x, 0).to(x.dtype)
    rest = tl.where(negative, 2 - (exponent & 1), exponent).to(x.dtype)
    result = tl.full(x.shape, 1, x.dtype)
    for _ in tl.static_range(x.dtype.primitive_bitwidth):
        result = tl.where((rest & 1) != 0, result * base, result).to(x.dtype)
        base = (base * base).to(x.dtype)
        rest = (rest >> 1).to(x.dtype)
    return result


# --- random numbers: Philox4x32-7, element i is word i % 4 for counter i // 4


@triton.jit
def _philox(seed, counter):
    zero = tl.zeros_like(counter).to(tl.uint32)
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = ((counter >> 16) >> 16).to(tl.uint32)
    return tl.philox(seed, low, high, zero, zero, n_rounds=7)


@triton.jit
def _to_uniform(word):
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def uniform(seed, index):
    """f32 in [0, 1) for the elements with these linear indices."""
    index = index.to(tl.int64)
    w0, w1, w2, w3 = _philox(seed, index >> 2)
    word = index & 3
    low = tl.where(word == 0, w0, w1)
    return _to_uniform(tl.where(word < 2, low, tl.where(word == 2, w2, w3)))


@triton.jit
def uniform4(seed, first, ROWS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """For the elements first .. first + LANES - 1, `first` a multiple of 4: one Philox for four."""
    counter = (first.to(tl.int64) >> 2) + tl.arange(0, LANES // 4)[None, :]
    w0, w1, w2, w3 = _philox(seed, counter)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return _to_uniform(tl.reshape(words, [ROWS, LANES]))


@triton.jit
def halves(tile):
    """The left and the right half of a tile of rows by lanes."""
    rows: tl.constexpr = tile.shape[0]
    lanes: tl.constexpr = tile.shape[1]
    return tl.split(tl.permute(tl.reshape(tile, [rows, 2, lanes // 2]), (0, 2, 1)))
