"""Probes: what can be measured. They are the keys of the performance library (FusionStitching
2018), which ranks plans by measured instead of nominal times.

`stitching/costs.py` and `measure/matmul_units.py` ask for probes;
`measure/performance_library.py` measures them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType

# A library call; a kernel; a kernel for the transposed matmul.
MatmulPath = Literal["library", "kernel", "transposed"]


@dataclass(frozen=True, slots=True)
class OperationProbe:
    """A kernel that applies `op` to [rows, length] elements in one task. Apart from the processor
    and the toolchain, its time depends on nothing else."""

    op: Op
    source: DType  # of the operands
    dtype: DType
    rows: int
    length: int  # of a row; the lane axis
    lanes: int
    step: int = 1  # stride of the operand along a row: 0 broadcast, 1 contiguous, else strided
    across: bool = True  # a reduction along rows; else along columns, with sums in memory


@dataclass(frozen=True, slots=True)
class _Matmul:
    """A matmul of [rows, steps] with the transpose of [columns, steps], the layout of a linear
    layer's weights, into preallocated memory."""

    by: MatmulPath
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
class MatmulProbe(_Matmul):
    """A matmul of exactly the shapes of a plan, measured for half a second (option `tune`)."""


@dataclass(frozen=True, slots=True)
class RateProbe(_Matmul):
    """One of the few matmuls from whose times the rates of all others follow
    (`machine/matmul_rates.py`); measured for milliseconds."""


Probe = Union[OperationProbe, MatmulProbe, RateProbe]
