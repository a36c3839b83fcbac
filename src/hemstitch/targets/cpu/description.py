"""A processor as lowering and printing know it, and what else they are told of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import Buffer
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Execution, Machine, MatrixUnits
from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.targets.cpu.emitter import PORTABLE, Features


@dataclass(frozen=True, slots=True)
class Target:
    """What code is printed for. `lanes`: f32 elements of a vector; `parallel`: OpenMP is there."""

    lanes: int
    threads: int  # most tasks a launch may have; scratch has room for them
    parallel: bool
    features: Features = PORTABLE


@dataclass(frozen=True, slots=True)
class CPULowering:
    """`blocking`: of matmuls. `aligned`: buffers that begin with a cache line. `sizes`: what to
    expect of those that only a call knows, and "threads"."""

    target: Target
    blocking: Blocking = USUAL
    aligned: frozenset[Buffer] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def unroll_factor(self) -> int:
        """Vectors that a lane loop has in flight."""
        return CPU.vectors_in_flight

    @property
    def cascade_block(self) -> int:
        """Elements of a block of a long sum."""
        return CPU.cascade_terms * CPU.vectors_in_flight * self.target.lanes


def generic_cpu(threads: int, lanes: int) -> Machine:
    """A present-day core: 3.5 GHz, two vector instructions a cycle. How fast it multiplies, where
    that is not measured (`measure/matmul_units.py`), is a Xeon's with AVX-512 and AMX: of f32 our
    kernels are as fast as the library. Half types the library multiplies three times as fast, but
    takes 35 us longer to begin. How fast operands are packed is an EPYC's."""
    scale = threads * lanes / 16
    half = MatrixUnits(2.5e11 * scale, 0.3, 1e10 * threads, call_seconds=35e-6)
    matmul_units = {
        DType.F32: MatrixUnits(1e11 * scale, 0.95, 8e9 * threads, call_seconds=3e-6),
        **dict.fromkeys((DType.F16, DType.BF16), half),
    }
    return Machine(
        execution=Execution.SIMD,
        threads=threads,
        partial_copies=1,
        lanes=lanes,
        least_block=256,
        l1_bytes=32 << 10,
        l2_bytes=1 << 20,
        accumulator_bytes=8,
        alignment=1,
        operations_per_second=7e9,
        access=1.0,
        memory_bytes_per_second=20e9 * min(threads, CPU.bandwidth_threads),
        bandwidth_threads=CPU.bandwidth_threads,
        cache_bytes_per_second=60e9,
        most_packed=64,
        matrix_units=matmul_units,
        launch_seconds=2e-6,
        barrier_seconds=1e-6,
    )
