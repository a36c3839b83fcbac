"""What lowering to Triton and printing are told of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hemstitch.ir.dims import Dim
from hemstitch.ir.types import DType
from hemstitch.machine.record import Execution, Machine, MatrixUnits
from hemstitch.targets.gpu.tiling import USUAL, TileShape


@dataclass(frozen=True, slots=True)
class GPULowering:
    """`hint`: a likely value of a size; `programs`: so many run at once. Both decide on tiles,
    which have this `shape`."""

    hint: Callable[[Dim], int]
    programs: int
    shape: TileShape = USUAL


def generic_gpu(processors: int = 132, *, exact_matmuls: bool = True) -> Machine:
    """A task is a program that has a multiprocessor for itself: 128 lanes, 1.7 GHz, and its share
    of 4 TB/s. A program's sums run over a few hundred rows at most, and then over programs: f32 is
    enough for them. Without `exact_matmuls` the library rounds f32 to TF32, and then multiplies
    faster than kernels, which do not. How fast operands of half types come, and how much longer
    than a launch the host takes for a call, are an H200's
    (docs/design/code-generation-for-gpus.md)."""
    half = MatrixUnits(7e14, 0.75, 6e12, 16384, call_seconds=1e-5)
    units = dict.fromkeys((DType.F16, DType.BF16), half)
    if exact_matmuls:
        units[DType.F32] = MatrixUnits(5e13, 0.75, 6e12, 8192)
    lanes, operations, bandwidth = 128, 1.7e9, 4e12
    return Machine(
        execution=Execution.SIMT,
        threads=processors,
        partial_copies=8,
        lanes=lanes,
        least_block=64,
        l1_bytes=32 << 10,
        l2_bytes=256 << 10,
        accumulator_bytes=4,
        alignment=16,
        operations_per_second=operations,
        access=4 * lanes * operations * processors / bandwidth,
        memory_bytes_per_second=bandwidth,
        bandwidth_threads=processors,
        cache_bytes_per_second=5e12 / processors,
        most_packed=32,
        matrix_units=units,
        launch_seconds=3e-6,
        barrier_seconds=2e-6,
    )
