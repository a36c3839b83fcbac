"""What can be measured: keys of the performance library (FusionStitching 2018), which ranks plans
by measured times rather than nominal ones.

`stitching/costs.py` and `measure/matmul_units.py` ask for probes,
`measure/performance_library.py` has them measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType

# By a call of the library, by a kernel, or by one that multiplies the matrices' transposes.
Way = Literal["library", "kernel", "turned"]


@dataclass(frozen=True, slots=True)
class OperationProbe:
    """A kernel that applies `op` to [rows, length] elements in one task. Beside the processor and
    the versions of what made it, its time depends on nothing else."""

    op: Op
    source: DType  # of the operands
    dtype: DType
    rows: int
    length: int  # of each row, which is walked over lanes
    lanes: int
    step: int = 1  # from an operand to the next in a row: 0 broadcast, 1 contiguous, else strided
    across: bool = True  # a reduction's rows are combined; else its columns, in memory


@dataclass(frozen=True, slots=True)
class _Multiplies:
    """[rows, steps] times the transpose of [columns, steps], which is how layers have weights: by a
    call of the library, or by a kernel that does nothing else. Both write to memory that is there.
    """

    by: Way
    dtype: DType
    rows: int
    steps: int
    columns: int
    threads: int
    lanes: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.steps * self.columns


@dataclass(frozen=True, slots=True)
class ProductProbe(_Multiplies):
    """The very product that a plan is about, measured for half a second (option `tune`)."""


@dataclass(frozen=True, slots=True)
class RateProbe(_Multiplies):
    """One of a few, timed for milliseconds, from which any other follows
    (`machine/matmul_rates.py`)."""


Probe = Union[OperationProbe, ProductProbe, RateProbe]
