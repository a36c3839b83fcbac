"""Pairs of kernels of which one must be slower, for a reason that needs no GPU to see."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from hemstitch.latency.evaluate import Bound, Estimate
from hemstitch.latency.facts import facts
from hemstitch.latency.occupancy import Limiter
from hemstitch.latency.opcodes import Pipe
from tests.latency import kernels
from tests.latency.cubins import (
    CHAIN,
    CHASE,
    COPY,
    COPY_BYTES,
    COPY_HALF,
    DROPOUT,
    PARTIAL,
    PRODUCT,
    SUMS,
    built,
)

SMS = 132
ROWS, COLUMNS = 32768, 1024
SUMS_BYTES = ROWS * COLUMNS * 2
ELEMENTS = 1 << 24


def is_slower(slow: Estimate, fast: Estimate) -> bool:
    assert not slow.unknown_opcodes and not fast.unknown_opcodes
    return slow.seconds > 1.05 * fast.seconds and slow.rank > fast.rank


def test_scalar_loads_of_bytes_are_slower_than_vectors() -> None:
    # The array is in L2. A load of a byte keeps the load/store unit busy for a clock and moves 32
    # bytes for a warp; one of 16 bytes keeps it busy for four and moves 512. Only where `count` is
    # known to be divisible by 16 is a mask equal for 16 neighbours.
    slow = built(kernels.copy, COPY_BYTES, {"BLOCK": 4096}).estimate(ELEMENTS // 4096)
    vectors = built(kernels.copy, COPY_BYTES, {"BLOCK": 4096}, divisible=["count"])
    fast = vectors.estimate(ELEMENTS // 4096)
    assert facts(vectors.code).wide_share() == 1.0
    assert is_slower(slow, fast)


def test_among_kernels_bound_by_memory_the_one_with_more_work_ranks_behind() -> None:
    # Both wait for the same bytes, so the times are equal; scalar loads leave less room for others.
    bytes_moved = 2 * 4 * ELEMENTS
    scalar = built(kernels.copy, COPY, {"BLOCK": 1024})
    vector = built(kernels.copy, COPY, {"BLOCK": 1024}, divisible=["count"])
    slow = scalar.estimate(ELEMENTS // 1024, memory_bytes=bytes_moved)
    fast = vector.estimate(ELEMENTS // 1024, memory_bytes=bytes_moved)
    assert slow.bound is fast.bound is Bound.MEMORY and slow.seconds == fast.seconds
    assert slow.rank > fast.rank


def test_spilled_registers_are_slower() -> None:
    # The same kernel, held to 96 registers where it wants more. One block for each SM either way,
    # so that the registers saved let nobody else in, and every spill is an instruction more.
    constants = {"N": COLUMNS, "BM": 8, "PROGRAMS": SMS}
    spilling = built(kernels.column_sums, SUMS, constants, warps=8, most_registers=96)
    roomy = built(kernels.column_sums, SUMS, constants, warps=8)
    assert facts(spilling.code).spills > 0 and facts(roomy.code).spills == 0
    trips = {"for start": ROWS / (SMS * 8)}
    assert is_slower(spilling.estimate(SMS, trips=trips), roomy.estimate(SMS, trips=trips))


def test_a_philox_for_each_element_is_slower_than_one_for_four() -> None:
    # Ten rounds of two multiplications are four times as many, and no longer hide behind 2 + 2
    # bytes.
    each = built(kernels.dropout_each, DROPOUT, {"BLOCK": 1024})
    four = built(kernels.dropout_four, DROPOUT, {"BLOCK": 1024})
    bytes_moved = 2 * 2 * ELEMENTS
    slow = each.estimate(ELEMENTS // 1024, memory_bytes=bytes_moved)
    fast = four.estimate(ELEMENTS // 1024, memory_bytes=bytes_moved)
    assert slow.bound is Bound.PIPE and fast.bound is Bound.MEMORY
    assert is_slower(slow, fast)


def test_too_few_programs_are_slower_than_enough() -> None:
    # A program has one row in flight. 132 rows of 2 KB against 600 clocks of latency are less than
    # memory gives; 1056 are not.
    def estimate(programs: int) -> Estimate:
        kernel = built(kernels.row_sums, SUMS, {"N": COLUMNS, "PROGRAMS": programs})
        trips = {"for row": ROWS / programs}
        return kernel.estimate(programs, trips=trips, memory_bytes=SUMS_BYTES)

    slow, fast = estimate(SMS), estimate(8 * SMS)
    assert slow.bound is Bound.LATENCY
    assert is_slower(slow, fast)


def test_blocks_of_eight_warps_that_fit_once_are_slower_than_blocks_of_four() -> None:
    # Threads do the same work with the same registers, more than 128. A block of 8 warps takes more
    # than half of the register file and leaves the rest unused; of blocks of 4 warps three fit.
    eight = built(
        *(kernels.column_sums, SUMS, {"N": COLUMNS, "BM": 8, "PROGRAMS": SMS}),
        warps=8,
    )
    four = built(kernels.column_sums, SUMS, {"N": COLUMNS, "BM": 4, "PROGRAMS": 3 * SMS})
    slow = eight.estimate(SMS, trips={"for start": ROWS / (SMS * 8)}, memory_bytes=SUMS_BYTES)
    fast = four.estimate(3 * SMS, trips={"for start": ROWS / (SMS * 12)}, memory_bytes=SUMS_BYTES)
    assert slow.occupancy.blocks == 1 and slow.occupancy.limiters == (Limiter.REGISTERS,)
    assert fast.occupancy.blocks == 3
    assert is_slower(slow, fast)


def test_one_dependent_chain_is_slower_than_two() -> None:
    # As many exponentials in all; in one chain each waits for the one before, in two every other
    # fills the time of its neighbour.
    one = built(kernels.one_chain, CHAIN, {"BLOCK": 128})
    two = built(kernels.two_chains, CHAIN, {"BLOCK": 128})
    slow = one.estimate(SMS, trips={"for _": 1000})
    fast = two.estimate(SMS, trips={"for _": 500})
    assert is_slower(slow, fast)


def test_more_bytes_are_slower() -> None:
    # The same copy of elements of 4 bytes and of 2.
    wide = built(kernels.copy, COPY, {"BLOCK": 1024}, divisible=["count"])
    narrow = built(kernels.copy, COPY_HALF, {"BLOCK": 1024}, divisible=["count"])
    slow = wide.estimate(ELEMENTS // 1024, memory_bytes=8 * ELEMENTS)
    fast = narrow.estimate(ELEMENTS // 1024, memory_bytes=4 * ELEMENTS)
    assert slow.bound is Bound.MEMORY
    assert is_slower(slow, fast)


def test_a_device_wide_barrier_costs() -> None:
    # The same kernel with and without it.
    constants = {"N": COLUMNS, "PROGRAMS": SMS}
    waiting = built(kernels.centre, PARTIAL, {**constants, "WAIT": True}, cooperative=True)
    free = built(kernels.centre, PARTIAL, {**constants, "WAIT": False})
    bytes_moved = 2 * 4 * SMS * COLUMNS
    slow = waiting.estimate(SMS, memory_bytes=bytes_moved, barriers=1)
    fast = free.estimate(SMS, memory_bytes=bytes_moved)
    assert slow.barrier_seconds > 0.0 == fast.barrier_seconds
    assert is_slower(slow, fast)


def test_a_half_filled_last_wave_is_slower_than_full_waves() -> None:
    # As many loads in all. 1.5 waves take as long as 2, of programs that do two thirds of the work.
    kernel = built(kernels.pointer_chase, CHASE, {"BLOCK": 128})
    resident = 16 * SMS
    fast = kernel.estimate(resident, trips={"for _": 150})
    slow = kernel.estimate(3 * resident // 2, trips={"for _": 100})
    assert (fast.waves, slow.waves) == (1.0, 1.5)
    assert is_slower(slow, fast)


def test_a_product_that_waits_for_each_tile_is_slower_than_a_pipelined_one() -> None:
    # With one stage every step waits for memory; with three, loads of the next tiles are under way.
    constants = {"BM": 128, "BN": 128, "BK": 64}
    waiting = built(kernels.product, PRODUCT, constants, warps=8, stages=1, divisible=["K"])
    ahead = built(kernels.product, PRODUCT, constants, warps=8, stages=3, divisible=["K"])
    slow = waiting.estimate(SMS, trips={"for _": 64})
    fast = ahead.estimate(SMS, trips={"for _": 64})
    assert fast.busiest_pipe is Pipe.MATRIX
    assert is_slower(slow, fast)


def test_what_one_program_does_is_waited_for_once() -> None:
    # Only the last program runs the sum over all. In one wave it is waited for in any case; in ten
    # it must not be counted ten times, nor as work of all programs.
    kernel = built(kernels.last_block, PARTIAL, {"N": COLUMNS, "PROGRAMS": SMS})
    trips = {"for other": SMS}
    lines = ("for other", "total +=", "tl.store(result")
    shares = {kernel.line(text): 1 / SMS for text in lines}
    for programs in (SMS, 10 * 16 * SMS):
        slow = kernel.estimate(programs, trips=trips)
        fast = kernel.estimate(programs, trips=trips, shares=shares)
        assert fast.slowest_cycles == slow.warp_cycles > fast.warp_cycles
        assert fast.pipe_seconds[Pipe.ISSUE] < slow.pipe_seconds[Pipe.ISSUE]
        assert is_slower(slow, fast) is (fast.waves > 1.0)
