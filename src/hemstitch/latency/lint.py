"""Lints of compiled GPU kernels. Takes machine code, assembly text and what the printer of the
kernel expects of it; gives findings with their reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from hemstitch.latency.amd import MI300X, ComputeUnit, amd_blocks, amd_facts
from hemstitch.latency.architecture import Architecture
from hemstitch.latency.disassembly import Disassembly
from hemstitch.latency.facts import WIDE_BITS, Facts, facts
from hemstitch.latency.occupancy import occupancy
from hemstitch.latency.ptx import PtxInstruction, SynchronisationRole

LEAST_WIDE_SHARE = 0.5  # of the bits; below it most of the traffic is in narrow accesses
# With device scope. (Assertions have system scope: `sc0 sc1`.)
_WRITE_BACK, _INVALIDATE = re.compile(r"^\tbuffer_wbl2 sc1\b"), re.compile(r"^\tbuffer_inv sc1\b")
_AMD_ACCESS = re.compile(r"^\t(?:global|buffer|flat)_(?:load|store|atomic)_")


class LintCheck(Enum):
    SPILLS = "spills"
    MATRIX = "matrix"
    WIDTH = "width"
    BARRIERS = "barriers"
    ORDER = "order"
    INVALIDATION = "invalidation"
    COOPERATIVE = "cooperative"
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class Finding:
    check: LintCheck
    why: str

    def __str__(self) -> str:
        return f"{self.check.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the printer of a kernel knows of it."""

    warps: int
    shared_bytes: int = 0  # dynamic
    has_dot: bool = False
    barriers: int = 0  # device-wide
    last_block_reductions: int = 0  # atomics that release and acquire, without waiting
    width_bits: int = WIDE_BITS  # the widest access that alignment and tile allow; 0: no check
    cooperative_programs: int | None = None  # that must be co-resident


def lint(
    code: Disassembly, ptx: Sequence[PtxInstruction], expected: Expected, architecture: Architecture
) -> tuple[Finding, ...]:
    """Findings for NVIDIA: spills, matrix instructions, access widths, barriers, co-residency."""
    counts = facts(code)
    resident = occupancy(
        architecture,
        registers=counts.registers,
        shared_bytes=counts.shared_bytes + expected.shared_bytes,
        warps=expected.warps,
    )
    return (
        *_spills(counts),
        *_matrix(code, expected, architecture),
        *_width(counts, expected),
        *_barrier_count(ptx, expected),
        *_barrier_order(ptx),
        *_invalidation(code, expected),
        *_launch(resident.blocks, str(resident)),
        *_residency(expected, resident.blocks, architecture.sms),
    )


def lint_amd(text: str, expected: Expected, unit: ComputeUnit = MI300X) -> tuple[Finding, ...]:
    """Findings for amdgcn assembly."""
    counts = amd_facts(text)
    shared = counts.shared_bytes + expected.shared_bytes
    has_matrix = counts.matrix > 0 or not expected.has_dot
    blocks = amd_blocks(text, shared_bytes=shared, warps=expected.warps, unit=unit)
    return (
        *_spills(counts),
        *(() if has_matrix else (Finding(LintCheck.MATRIX, "a matmul of tiles without v_mfma"),)),
        *_width(counts, expected),
        *_amd_barriers(text, expected),
        *_launch(blocks, f"{counts.registers} registers, {shared} bytes of LDS"),
        *_residency(expected, blocks, unit.units),
    )


def _spills(counts: Facts) -> Iterator[Finding]:
    if counts.spills or counts.stack_bytes:
        yield Finding(
            LintCheck.SPILLS,
            f"{counts.spills} accesses to spilled registers, {counts.stack_bytes} bytes of stack "
            f"for each thread at {counts.registers} registers: take smaller tiles or more warps",
        )


def _matrix(code: Disassembly, expected: Expected, architecture: Architecture) -> Iterator[Finding]:
    opcode = architecture.matrix_opcode
    if expected.has_dot and not any(row.base.startswith(opcode) for row in code.instructions):
        slow_opcodes = sorted({row.base for row in code.instructions if row.base.endswith("MMA")})
        opcodes = " and ".join(slow_opcodes) or "no matrix instruction"
        yield Finding(
            LintCheck.MATRIX,
            f"a matmul of tiles on {architecture.target} became {opcodes}, not {opcode}: tiles of "
            "64 rows or more and four warps or more allow it",
        )


def _width(counts: Facts, expected: Expected) -> Iterator[Finding]:
    share = counts.wide_share(expected.width_bits)
    is_counted = expected.width_bits > 0 and not counts.bulk_copies
    if is_counted and share < LEAST_WIDE_SHARE:
        widths = ", ".join(
            f"{count} of {width} bits"
            for width, count in (counts.loads + counts.stores).by_width.items()
        )
        yield Finding(
            LintCheck.WIDTH,
            f"{share:.0%} of the traffic is in accesses of {expected.width_bits} bits ({widths}): "
            "the compiler knows too little of alignment or of what is contiguous",
        )


def _barrier_count(ptx: Sequence[PtxInstruction], expected: Expected) -> Iterator[Finding]:
    arrivals = sum(1 for row in ptx if row.role is SynchronisationRole.ARRIVE)
    waits = sum(1 for row in ptx if row.role is SynchronisationRole.ACQUIRE)
    if (arrivals, waits) != (expected.barriers + expected.last_block_reductions, expected.barriers):
        yield Finding(
            LintCheck.BARRIERS,
            f"{expected.barriers} device-wide barriers and "
            f"{expected.last_block_reductions} last-block reductions were expected, "
            f"the PTX has {arrivals} releases and {waits} waits",
        )


def _barrier_order(ptx: Sequence[PtxInstruction]) -> Iterator[Finding]:
    """An access between a program's arrival at a barrier and its wait is unordered."""
    accesses: int | None = None  # since the last arrival
    for row in ptx:
        if row.role is SynchronisationRole.ARRIVE:
            accesses = 0
        elif row.role is SynchronisationRole.ACCESS and accesses is not None:
            accesses += 1
        elif row.role is SynchronisationRole.ACQUIRE:
            if accesses:
                yield Finding(
                    LintCheck.ORDER,
                    f"{accesses} accesses to global memory between the arrival at a device-wide "
                    f"barrier and its wait, line {row.line}",
                )
            accesses = None


def _invalidation(code: Disassembly, expected: Expected) -> Iterator[Finding]:
    """After an acquire, L1 may still hold lines that other programs have overwritten."""
    invalidated = 0
    after_poll = False
    for row in code.instructions:
        if row.base in ("LDG", "LD", "ATOMG"):
            after_poll = "STRONG" in row.opcode
        elif after_poll and row.opcode.startswith("CCTL.IVALL"):
            invalidated, after_poll = invalidated + 1, False
    if invalidated < expected.barriers + expected.last_block_reductions:
        yield Finding(
            LintCheck.INVALIDATION,
            f"{expected.barriers} device-wide barriers and "
            f"{expected.last_block_reductions} last-block reductions, but L1 is "
            f"invalidated after {invalidated}: loads behind them may read old values",
        )


def _launch(blocks: int, why: str) -> Iterator[Finding]:
    if not blocks:
        yield Finding(LintCheck.LAUNCH, f"no block fits on a processor: {why}")


def _residency(expected: Expected, blocks: int, units: int) -> Iterator[Finding]:
    programs = expected.cooperative_programs
    if programs is not None and programs > blocks * units:
        yield Finding(
            LintCheck.COOPERATIVE,
            f"{programs} programs wait for each other, but only {blocks} on each of {units} "
            "processors run at a time: the launch would be refused",
        )


def _amd_barriers(text: str, expected: Expected) -> Iterator[Finding]:
    """LLVM writes L2 back before a release and invalidates caches after an acquire."""
    arrivals = waits = 0
    is_releasing = False
    for row in text.splitlines():
        if _WRITE_BACK.match(row):
            is_releasing = True
        elif _INVALIDATE.match(row):
            waits += 1
        elif _AMD_ACCESS.match(row) and is_releasing:
            arrivals, is_releasing = arrivals + 1, False
    expected_count = expected.barriers + expected.last_block_reductions
    if (arrivals, waits) != (expected_count, expected_count):
        yield Finding(
            LintCheck.BARRIERS,
            f"{expected.barriers} device-wide barriers and "
            f"{expected.last_block_reductions} last-block reductions were expected, "
            f"the assembly has {arrivals} releases and {waits} invalidations",
        )
