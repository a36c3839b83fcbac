"""A processor as lowering and printing know it, and what else they are told of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hemstitch.kernel_ir.nodes import Buffer
from hemstitch.matmul.lowering.blocking import USUAL, Blocking
from hemstitch.targets.cpu.emitter import PORTABLE, Features
from hemstitch.targets.cpu.interleave_factor import USUAL as USUAL_COPIES

TERMS = 64  # that each lane adds up, before all of them go to a longer sum


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
    def copies(self) -> int:
        """Vectors that a lane loop has in flight."""
        return USUAL_COPIES

    @property
    def terms(self) -> int:
        """Elements of a block of a long sum."""
        return TERMS * USUAL_COPIES * self.target.lanes
