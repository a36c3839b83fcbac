"""What planning and scheduling know of a processor: one record of numbers, each with its unit and
where it comes from. They rank candidates; no result depends on them, but for how sums in memory are
kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from enum import Enum
from typing import Any

from hemstitch.ir.types import DType
from hemstitch.machine.matmul_rates import Pace, Rates
from hemstitch.machine.probes import Probe


def number(unit: str, meaning: str, default: Any = MISSING, source: str = "") -> Any:
    """A field of a record. `source`: a page of the documents, or whose manual says so."""
    metadata = {"unit": unit, "meaning": meaning, "source": source}
    return field(default=default, metadata=metadata)


class Execution(Enum):
    """How the lanes of a loop run, which decides where a row waits."""

    SIMD = "vectors"  # of one thread: a row waits in its caches, sums of columns in memory
    SIMT = "threads"  # of a program: a tile of rows by lanes waits in registers


@dataclass(frozen=True, slots=True)
class MatrixUnits:
    """How fast matrices of one element type are multiplied. `measured`: on processors."""

    operations_per_second: float = number("1/s", "that the library reaches")
    share: float = number("1", "of that, what a kernel of ours reaches with large tiles")
    operand_bytes_per_second: float = number("B/s", "into on-chip memory, or packed, of all tasks")
    # SIMT: the fewer rows a tile has, the more often the other matrix is read again. SIMD: rows
    # wait in memory, and the other matrix is packed once for all of them.
    tile_elements: int = number("1", "of a matmul that one program adds up at once", 0)
    call_seconds: float = number("s", "of the library, beyond a launch", 0.0)
    measured: Rates | None = None

    def rates(self, dtype: DType) -> Rates:
        """On processors; where nothing is measured, nominal ones, whatever an operand's size."""
        if self.measured is not None:
            return self.measured
        operand = dtype.bytes / self.operand_bytes_per_second
        by_library, own = (2 / self.operations_per_second / share for share in (1.0, self.share))
        library, kernel = (Pace(operand, row) for row in (by_library, own))
        return Rates.alike(self.call_seconds, library, kernel)

    def seconds(self, operations: float) -> float:
        """Of a kernel of ours, with large tiles."""
        return operations / (self.operations_per_second * self.share)


@dataclass(frozen=True, slots=True)
class Machine:
    """`products`: of the element types that kernels may multiply. `measured`: seconds by probe;
    None: all is nominal. `meets`: a launch may have a grid-wide barrier."""

    execution: Execution
    products: Mapping[DType, MatrixUnits]
    threads: int = number("1", "tasks that run at once: on a GPU, one a multiprocessor")
    copies: int = number("1", "of partial results that each leaves, at most")
    lanes: int = number("f32", "of a vector instruction: on a GPU, all threads of a program")
    least_block: int = number("elements", "of the lane axis in one block, where it is cut")
    l1_bytes: int = number("B", "what a row may take to be read again for nothing")
    l2_bytes: int = number("B", "of one task")
    accumulator_bytes: int = number("B", "of f32 sums in memory: 8 where they may be of millions")
    alignment: int = number("B", "of the addresses from which lanes load at once")
    operations_per_second: float = number("1/s", "vector instructions of one thread")
    access: float = number("instructions", "what a vector's first load or store costs")
    memory_bytes_per_second: float = number("B/s", "of all threads together, beyond the caches")
    bandwidth_threads: int = number("1", "that together use all of memory's bandwidth")
    cache_bytes_per_second: float = number("B/s", "of one thread, out of L2")
    most_packed: int = number("groups", "of one launch: bounds code, arguments and registers")
    launch_seconds: float = number("s", "of the host, for each launch")
    barrier_seconds: float = number("s", "of a grid-wide barrier")
    has_grid_barrier: bool = True
    measured: Mapping[Probe, float] | None = None
