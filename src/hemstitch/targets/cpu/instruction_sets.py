"""The instruction sets of processors. Takes LLVM's names for what a processor has, gives the first
row of the table whose needs it meets. A new instruction set is a row here. What code calls by name
is also a field of `Features` and a method of `Emitter`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hemstitch.targets.cpu.emitter import PORTABLE, Features

# By LLVM's names: what no feature flag says. Measured: docs/compiler/performance-notes.md.
FAST_DIVISION = frozenset({"znver4"})

AVX512 = Features(avx512=True, many_registers=True, free_masks=True)


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`needs`: LLVM's names of processor features. `lanes`: f32 elements of the widest vectors.
    `sleef`: doubles of Sleef's widest functions for it, where torch brings them along."""

    name: str
    needs: frozenset[str]
    lanes: int
    features: Features
    sleef: int = 0


INSTRUCTION_SETS = (
    InstructionSet(
        "AVX-512 BF16",
        frozenset({"avx512f", "avx512vl", "avx512bf16"}),
        16,
        replace(AVX512, bf16=True),
        sleef=8,
    ),
    InstructionSet("AVX-512", frozenset({"avx512f", "avx512vl"}), 16, AVX512, sleef=8),
    # Its instructions do not take the narrower vectors of other element types.
    InstructionSet("AVX-512 F", frozenset({"avx512f"}), 16, PORTABLE, sleef=8),
    InstructionSet("AVX2", frozenset({"avx2"}), 8, PORTABLE, sleef=4),
    InstructionSet("vectors of 128 bits", frozenset(), 4, PORTABLE),
)


def instruction_set_of(processor: str, flags: Mapping[str, bool]) -> InstructionSet:
    """`processor` and `flags`: LLVM's name for a processor, and which features it has."""
    present = {name for name, is_present in flags.items() if is_present}
    row = next(row for row in INSTRUCTION_SETS if row.needs <= present)
    is_fast = processor in FAST_DIVISION
    return replace(row, features=replace(row.features, fast_division=is_fast))
