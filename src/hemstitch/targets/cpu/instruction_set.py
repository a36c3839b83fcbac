"""Descriptions of CPU instruction sets: what code generation asks of one, beside its vector width.
Takes nothing, gives records; `Features` in `emitter.py` says which of them a processor has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# f32 lanes of the widest vectors, by LLVM's name of the feature, the widest first. A processor with
# none of them has vectors of 16 bytes: SSE2, or NEON.
LANES: Mapping[str, int] = {"avx512f": 16, "avx2": 8}
BASELINE_LANES = 4


@dataclass(frozen=True, slots=True)
class VectorRegisters:
    """Tiles that fit the registers. `tile_rows`: of a tile of the micro-kernel, by how many vectors
    it is wide, beside the vectors of the right operand and an element of the left, and at least as
    many sums as are in flight. `skinny_sums`, `skinny_columns`: of a tile of a skinny matmul."""

    count: int
    tile_rows: Sequence[int]
    skinny_sums: int
    skinny_columns: int


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`has_masks`: masked loads and stores cost nothing, for elements of any size, and LLVM folds
    selects into them. `has_table_lookup`: one instruction looks 16 f32 up in a register.
    `has_scaling`: one multiplies f32 by a power of two, without a detour through denormals.
    `has_i64_conversions`: of vectors of floats."""

    registers: VectorRegisters
    has_masks: bool = False
    has_table_lookup: bool = False
    has_scaling: bool = False
    has_i64_conversions: bool = False


PORTABLE_SET = InstructionSet(
    VectorRegisters(16, tile_rows=(0, 8, 6), skinny_sums=12, skinny_columns=4)
)
AVX512_SET = InstructionSet(
    VectorRegisters(32, tile_rows=(0, 12, 12, 8, 6), skinny_sums=24, skinny_columns=8),
    has_masks=True,
    has_table_lookup=True,
    has_scaling=True,
    has_i64_conversions=True,
)
