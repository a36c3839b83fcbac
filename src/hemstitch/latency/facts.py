"""Counts the instructions and resources of a kernel, for lints and reports. Takes a disassembly,
gives `Facts`, which are the same for every vendor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hemstitch.latency.disassembly import Disassembly
from hemstitch.latency.opcodes import BULK_LOADS, width_bits
from hemstitch.machine.gpu_numbers import GPU

WIDE_BITS = 8 * GPU.access_bytes  # the widest access that all targets have


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses to global memory: `by_width` counts instructions by the bits that each thread
    moves."""

    by_width: Mapping[int, int]

    @property
    def count(self) -> int:
        return sum(self.by_width.values())

    @property
    def bits(self) -> int:
        """Bits that a thread moves if every access runs once."""
        return sum(width * count for width, count in self.by_width.items())

    def bits_in(self, least: int) -> int:
        """As `bits`, of accesses of at least `least` bits."""
        return sum(width * count for width, count in self.by_width.items() if width >= least)

    def __add__(self, other: Accesses) -> Accesses:
        both = Counter(self.by_width) + Counter(other.by_width)
        return Accesses(MappingProxyType(dict(sorted(both.items()))))


@dataclass(frozen=True, slots=True)
class Facts:
    """Static counts: an instruction in a loop counts once."""

    registers: int  # of a thread
    stack_bytes: int  # of a thread
    shared_bytes: int  # static, of a block
    spills: int  # loads and stores of spilled registers
    loads: Accesses
    stores: Accesses
    asynchronous_copies: int  # loads directly into shared memory
    bulk_copies: int  # by the TMA; not among the loads and stores
    matrix: int  # MMA instructions of one warp
    warpgroup_matrix: int  # MMA instructions of four warps or more
    special: int
    shuffles: int
    barriers: int  # of a block
    atomics: int
    instructions: int

    def wide_share(self, least: int = WIDE_BITS) -> float:
        """The fraction of global-memory bits in accesses of at least `least` bits; 1 without
        accesses."""
        accesses = self.loads + self.stores
        return accesses.bits_in(least) / accesses.bits if accesses.bits else 1.0


def facts(code: Disassembly) -> Facts:
    """The facts of NVIDIA machine code."""
    bases = Counter(instruction.base for instruction in code.instructions)
    del bases["NOP"]  # padding

    def count(*names: str) -> int:
        return sum(bases[name] for name in names)

    def starting(*starts: str) -> int:
        return sum(number for name, number in bases.items() if name.startswith(starts))

    return Facts(
        registers=code.resources.registers,
        stack_bytes=code.resources.stack_bytes,
        shared_bytes=code.resources.shared_bytes,
        spills=count("LDL", "STL"),
        loads=_accesses(code, "LDG", "LD", "LDGSTS"),
        stores=_accesses(code, "STG", "ST"),
        asynchronous_copies=count("LDGSTS"),
        bulk_copies=starting("UTMA", *BULK_LOADS),
        matrix=count("HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "BMMA"),
        warpgroup_matrix=count("HGMMA", "IGMMA", "QGMMA", "BGMMA") + _blackwell_mma(bases),
        special=count("MUFU"),
        shuffles=count("SHFL"),
        barriers=count("BAR"),
        atomics=starting("ATOM", "RED"),
        instructions=sum(bases.values()),
    )


def _accesses(code: Disassembly, *bases: str) -> Accesses:
    widths = Counter(
        width_bits(instruction.opcode)
        for instruction in code.instructions
        if instruction.base in bases
    )
    return Accesses(MappingProxyType(dict(sorted(widths.items()))))


def _blackwell_mma(bases: Mapping[str, int]) -> int:
    return sum(
        count for name, count in bases.items() if name.startswith("UTC") and name.endswith("MMA")
    )
