"""The few numbers of a processor that planning and scheduling know.

Sources: docs/performance.md for CPUs, the vendor's data sheet of the H200 for GPUs. They rank
candidates; no result ever depends on them, but for how sums in memory are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hemstitch.ir.types import DType
from hemstitch.stitching.matmul_rates import Pace, Rates
from hemstitch.stitching.probes import Probe

CROWD = 8  # threads of a processor that together use all of memory's bandwidth


@dataclass(frozen=True, slots=True)
class MatrixUnits:
    """How fast matrices are multiplied. `tile`: elements of a product that a program of ours adds
    up at once; the fewer rows it has, the more often the other matrix is read again. 0: rows wait
    in memory, and the other matrix is packed once for all of them."""

    operations_per_second: float  # that the library reaches
    share: float  # of that, what a kernel of ours reaches with large tiles
    operand_bytes_per_second: float  # into on-chip memory, or packed, of all programs
    tile: int
    call_seconds: float = 0.0  # of the library, beyond a launch
    measured: Rates | None = None  # on processors

    def rates(self, dtype: DType) -> Rates:
        """On processors; where nothing is measured, nominal ones, whatever an operand's size."""
        if self.measured is not None:
            return self.measured
        operand = dtype.bytes / self.operand_bytes_per_second
        by_library, own = (2 / self.operations_per_second / share for share in (1.0, self.share))
        library, kernel = (Pace(operand, row) for row in (by_library, own))
        return Rates.alike(self.call_seconds, library, kernel)


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes, rates per second, times in seconds."""

    threads: int  # tasks that run at the same time: on a GPU, one on each multiprocessor
    copies: int  # of partial results that each leaves, at most: programs that share a processor
    lanes: int  # f32 elements a vector instruction works on: on a GPU, all threads of a program
    least_block: int  # elements of the lane axis in one block, where it is cut
    l1_bytes: int  # what a row may take to be read again for nothing: on a GPU, in registers
    l2_bytes: int
    sums_in_double: bool  # accumulators in memory may add up millions of values one by one
    alignment: int  # bytes; of the addresses from which lanes load at once
    crosses_in_tiles: bool  # values that change the order of axes go through tiles in cache
    tiles_in_registers: bool  # short rows share a tile, and sums of rows stay in registers
    keeps_rows_in_registers: bool  # those of products, so that they have a greatest length
    operations_per_second: float  # vector instructions of one thread
    access: float  # what a vector's first load or store costs, in vector instructions
    memory_bytes_per_second: float  # of all threads together, beyond the caches
    cache_bytes_per_second: float  # of one thread, out of L2
    most_packed: int  # groups of one launch: bounds code size, argument count and registers
    products: Mapping[DType, MatrixUnits]  # of these; empty: no kernel multiplies any
    launch_seconds: float
    barrier_seconds: float
    meets: bool = True  # tasks of a launch may wait for each other
    measured: Mapping[Probe, float] | None = None  # seconds; None: all is nominal


def generic_cpu(threads: int, lanes: int) -> Machine:
    """A present-day core: 3.5 GHz, two vector instructions a cycle. How fast it multiplies, where
    that is not measured (`measure/multiplication.py`), is a Xeon's with AVX-512 and AMX: of f32 our
    kernels are as fast as the library. Half types the library multiplies three times as fast, but
    takes 35 us longer to begin. How fast operands are packed is an EPYC's (docs/performance.md)."""
    each = threads * lanes / 16
    half = MatrixUnits(2.5e11 * each, 0.3, 1e10 * threads, 0, call_seconds=35e-6)
    products = {
        DType.F32: MatrixUnits(1e11 * each, 0.95, 8e9 * threads, 0, call_seconds=3e-6),
        **dict.fromkeys((DType.F16, DType.BF16), half),
    }
    return Machine(
        threads=threads,
        copies=1,
        lanes=lanes,
        least_block=256,
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        sums_in_double=True,
        alignment=1,
        crosses_in_tiles=True,
        tiles_in_registers=False,
        keeps_rows_in_registers=False,
        operations_per_second=7e9,
        access=1.0,
        memory_bytes_per_second=20e9 * min(threads, CROWD),
        cache_bytes_per_second=60e9,
        most_packed=64,
        products=products,
        launch_seconds=2e-6,
        barrier_seconds=1e-6,
    )


def generic_gpu(processors: int = 132, *, exact_products: bool = True) -> Machine:
    """A task is a program that has a multiprocessor for itself: 128 lanes, 1.7 GHz, and its share
    of 4 TB/s. A program's sums run over a few hundred rows at most, and then over programs: f32 is
    enough for them. Without `exact_products` the library rounds f32 to TF32, and then multiplies
    faster than kernels, which do not. How fast operands of half types come, and how much longer
    than a launch the host takes for a call, are an H200's (docs/decisions/0069)."""
    half = MatrixUnits(7e14, 0.75, 6e12, 16384, call_seconds=1e-5)
    units = dict.fromkeys((DType.F16, DType.BF16), half)
    if exact_products:
        units[DType.F32] = MatrixUnits(5e13, 0.75, 6e12, 8192)
    lanes, operations, bandwidth = 128, 1.7e9, 4e12
    return Machine(
        threads=processors,
        copies=8,
        lanes=lanes,
        least_block=64,
        l1_bytes=32 << 10,
        l2_bytes=256 << 10,
        sums_in_double=False,
        alignment=16,
        crosses_in_tiles=False,
        tiles_in_registers=True,
        keeps_rows_in_registers=True,
        operations_per_second=operations,
        access=4 * lanes * operations * processors / bandwidth,
        memory_bytes_per_second=bandwidth,
        cache_bytes_per_second=5e12 / processors,
        most_packed=32,
        products=units,
        launch_seconds=3e-6,
        barrier_seconds=2e-6,
    )
