"""One operation alone in a kernel: a key of the performance library (FusionStitching 2018), which
ranks plans by measured times rather than nominal ones.

`stitch/costs.py` asks for probes, `runtime/performance.py` has them measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType


@dataclass(frozen=True, slots=True)
class Probe:
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
