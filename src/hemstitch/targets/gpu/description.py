"""What lowering to Triton and printing are told of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hemstitch.ir.dims import Dim
from hemstitch.targets.gpu.tiling import USUAL, TileShape


@dataclass(frozen=True, slots=True)
class GPULowering:
    """`hint`: a likely value of a size; `programs`: so many run at once. Both decide on tiles,
    which have this `shape`."""

    hint: Callable[[Dim], int]
    programs: int
    shape: TileShape = USUAL
