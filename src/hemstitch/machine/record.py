"""The hardware record: what planning and scheduling know of a processor, each number with its unit
and source. The numbers rank candidates. Results do not depend on them, except for the type of
accumulators in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from enum import Enum
from typing import Any

from hemstitch.ir.types import DType
from hemstitch.machine.matmul_rates import MatmulCost, Rates
from hemstitch.machine.probes import Probe


def number(unit: str, meaning: str, default: Any = MISSING, source: str = "") -> Any:
    """A documented field of a record. `source`: a page of the documents, or a vendor's manual."""
    metadata = {"unit": unit, "meaning": meaning, "source": source}
    return field(default=default, metadata=metadata)


class Execution(Enum):
    """How the lanes of a loop execute, which decides where a row is kept between its loops."""

    SIMD = "vectors"  # of one thread: rows stay in its caches, column sums in memory
    SIMT = "threads"  # of a program: a tile of rows by lanes stays in registers


@dataclass(frozen=True, slots=True)
class MatrixUnits:
    """Matmul throughput for one element type. `measured`: on CPUs, None for nominal rates."""

    operations_per_second: float = number("1/s", "of the library")
    share: float = number("1", "of the library's rate, that a kernel reaches with large tiles")
    operand_bytes_per_second: float = number(
        "B/s", "of operands read on chip, or packed, by all tasks"
    )
    # SIMT: a tile of fewer rows reads the right operand more often. SIMD: no tiles, since the right
    # operand is packed once for all rows.
    tile_elements: int = number("1", "of the accumulator tile of one program", 0)
    call_seconds: float = number("s", "of a library call, beyond a launch", 0.0)
    measured: Rates | None = None

    def rates(self, dtype: DType) -> Rates:
        """The rates on a CPU: measured, or else nominal ones that do not depend on the operand's
        size."""
        if self.measured is not None:
            return self.measured
        operand = dtype.bytes / self.operand_bytes_per_second
        library_row, kernel_row = (
            2 / self.operations_per_second / share for share in (1.0, self.share)
        )
        library, kernel = (
            MatmulCost(operand, row_seconds) for row_seconds in (library_row, kernel_row)
        )
        return Rates.uniform(self.call_seconds, library, kernel)

    def seconds(self, operations: float) -> float:
        """Of so many operations in a kernel with large tiles."""
        return operations / (self.operations_per_second * self.share)


@dataclass(frozen=True, slots=True)
class Machine:
    """`matrix_units`: by the element types that kernels may multiply. `measured`: seconds by probe;
    None: all numbers are nominal. `has_grid_barrier`: whether a launch may contain a grid-wide
    barrier."""

    execution: Execution
    matrix_units: Mapping[DType, MatrixUnits]
    threads: int = number("1", "tasks that run concurrently: on a GPU, one per multiprocessor")
    partial_copies: int = number("1", "of partial results per task, at most")
    lanes: int = number("f32", "of a vector instruction; on a GPU, threads of a program")
    least_block: int = number("elements", "of a block of the lane axis, where it is split")
    l1_bytes: int = number("B", "of a row that is read again for free")
    l2_bytes: int = number("B", "of one task")
    accumulator_bytes: int = number(
        "B", "of accumulators in memory for f32: 8 where sums may have millions of terms"
    )
    alignment: int = number("B", "of vectorised accesses")
    operations_per_second: float = number("1/s", "vector instructions of one thread")
    access: float = number("instructions", "cost of a vector's first load or store")
    memory_bytes_per_second: float = number("B/s", "of memory, for all threads together")
    bandwidth_threads: int = number("1", "that saturate the memory bandwidth")
    cache_bytes_per_second: float = number("B/s", "of L2, for one thread")
    most_packed: int = number("groups", "of one launch; bounds code, arguments and registers")
    launch_seconds: float = number("s", "of the host, per launch")
    barrier_seconds: float = number("s", "of a grid-wide barrier")
    has_grid_barrier: bool = True
    most_block: int = number(
        "elements", "of a block of the lane axis, at most", 4096, "cost-models.md"
    )
    strided_access: int = number(
        "instructions",
        "cost of a strided access of a vector, at most: one per lane",
        16,
        "cost-models.md",
    )
    gathered_share: float = number(
        "1",
        "of a strided access: a gather often reads several elements of a line",
        0.8,
        "cost-models.md",
    )
    reversed_access: float = number(
        "instructions", "cost of a load with stride -1: a load and a shuffle", 2.0, "cost-models.md"
    )
    uniform_access: float = number(
        "instructions", "cost of a load that is the same in all lanes", 0.2, "cost-models.md"
    )
    horizontal_reduction: float = number(
        "instructions", "cost to combine the lanes of one accumulator", 12.0, "cost-models.md"
    )
    row_buffer_access: float = number(
        "instructions", "cost to pass one scalar through a row buffer", 10.0, "cost-models.md"
    )
    narrow_accumulate: float = number(
        "instructions", "cost to add a vector to f32 in memory", 2.0, "cost-models.md"
    )
    wide_accumulate: float = number(
        "instructions", "cost to add a vector to f64 in memory", 8.0, "cost-models.md"
    )
    row_decode: float = number(
        "instructions", "time to compute a further axis from a row number", 4.0, "cost-models.md"
    )
    recomputed_share: float = number(
        "1",
        "of the arithmetic that later loops of a row repeat, beside their loads",
        0.5,
        "cost-models.md",
    )
    arrival_share: float = number(
        "1", "of the time of a barrier, that a last-block reduction takes", 0.5, "cost-models.md"
    )
    measured: Mapping[Probe, float] | None = None
