"""What is wrong with a kernel that compiles. Takes its machine code, its assembly text and what its
maker expects of it, gives findings with their reasons; none for a kernel as it should be."""

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
# For the device. What an assertion tells the host is for the system: `sc0 sc1`.
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
    """What the maker of a kernel knows of it."""

    warps: int
    shared_bytes: int = 0  # dynamic
    has_dot: bool = False
    barriers: int = 0  # device-wide
    tickets: int = 0  # atomics that release and acquire, without a wait for other programs
    width_bits: int = WIDE_BITS  # the widest access that alignment and tile allow; 0: do not look
    cooperative_programs: int | None = None  # that must all be resident at once


def lint(
    code: Disassembly, ptx: Sequence[PtxInstruction], expected: Expected, architecture: Architecture
) -> tuple[Finding, ...]:
    """For NVIDIA. Spills, matrix instructions, widths, barriers, co-residency."""
    known = facts(code)
    held = occupancy(
        architecture,
        registers=known.registers,
        shared_bytes=known.shared_bytes + expected.shared_bytes,
        warps=expected.warps,
    )
    return (
        *_spills(known),
        *_matrix(code, expected, architecture),
        *_width(known, expected),
        *_barrier_count(ptx, expected),
        *_barrier_order(ptx),
        *_invalidation(code, expected),
        *_launch(held.blocks, str(held)),
        *_residency(expected, held.blocks, architecture.sms),
    )


def lint_amd(text: str, expected: Expected, unit: ComputeUnit = MI300X) -> tuple[Finding, ...]:
    """The same for amdgcn assembly."""
    known = amd_facts(text)
    shared = known.shared_bytes + expected.shared_bytes
    has_matrix = known.matrix > 0 or not expected.has_dot
    blocks = amd_blocks(text, shared_bytes=shared, warps=expected.warps, unit=unit)
    return (
        *_spills(known),
        *(() if has_matrix else (Finding(LintCheck.MATRIX, "a product of tiles without v_mfma"),)),
        *_width(known, expected),
        *_amd_barriers(text, expected),
        *_launch(blocks, f"{known.registers} registers, {shared} bytes of LDS"),
        *_residency(expected, blocks, unit.units),
    )


def _spills(known: Facts) -> Iterator[Finding]:
    if known.spills or known.stack_bytes:
        yield Finding(
            LintCheck.SPILLS,
            f"{known.spills} accesses to spilled registers, {known.stack_bytes} bytes of stack for "
            f"each thread at {known.registers} registers: take smaller tiles or more warps",
        )


def _matrix(code: Disassembly, expected: Expected, architecture: Architecture) -> Iterator[Finding]:
    start = architecture.matrix_opcode
    if expected.has_dot and not any(row.base.startswith(start) for row in code.instructions):
        slow = sorted({row.base for row in code.instructions if row.base.endswith("MMA")})
        found = " and ".join(slow) or "no matrix instruction"
        yield Finding(
            LintCheck.MATRIX,
            f"a product of tiles on {architecture.target} became {found}, not {start}: tiles of 64 "
            "rows or more and four warps or more allow it",
        )


def _width(known: Facts, expected: Expected) -> Iterator[Finding]:
    share = known.wide_share(expected.width_bits)
    is_counted = expected.width_bits > 0 and not known.bulk_copies
    if is_counted and share < LEAST_WIDE_SHARE:
        widths = ", ".join(
            f"{count} of {width} bits"
            for width, count in (known.loads + known.stores).by_width.items()
        )
        yield Finding(
            LintCheck.WIDTH,
            f"{share:.0%} of the traffic is in accesses of {expected.width_bits} bits ({widths}): "
            "the compiler knows too little of alignment or of what is contiguous",
        )


def _barrier_count(ptx: Sequence[PtxInstruction], expected: Expected) -> Iterator[Finding]:
    arrivals = sum(1 for row in ptx if row.role is SynchronisationRole.ARRIVE)
    waits = sum(1 for row in ptx if row.role is SynchronisationRole.ACQUIRE)
    if (arrivals, waits) != (expected.barriers + expected.tickets, expected.barriers):
        yield Finding(
            LintCheck.BARRIERS,
            f"{expected.barriers} device-wide barriers and {expected.tickets} tickets were meant, "
            f"the PTX has {arrivals} releases and {waits} waits",
        )


def _barrier_order(ptx: Sequence[PtxInstruction]) -> Iterator[Finding]:
    """An access after a program's arrival and before its wait is ordered by neither."""
    since: int | None = None  # accesses since the last arrival
    for row in ptx:
        if row.role is SynchronisationRole.ARRIVE:
            since = 0
        elif row.role is SynchronisationRole.ACCESS and since is not None:
            since += 1
        elif row.role is SynchronisationRole.ACQUIRE:
            if since:
                yield Finding(
                    LintCheck.ORDER,
                    f"{since} accesses to global memory between the arrival at a device-wide "
                    f"barrier and its wait, line {row.line}",
                )
            since = None


def _invalidation(code: Disassembly, expected: Expected) -> Iterator[Finding]:
    """After a wait or a ticket, L1 may still hold what other programs have overwritten."""
    invalidated = 0
    after_poll = False
    for row in code.instructions:
        if row.base in ("LDG", "LD", "ATOMG"):
            after_poll = "STRONG" in row.opcode
        elif after_poll and row.opcode.startswith("CCTL.IVALL"):
            invalidated, after_poll = invalidated + 1, False
    if invalidated < expected.barriers + expected.tickets:
        yield Finding(
            LintCheck.INVALIDATION,
            f"{expected.barriers} device-wide barriers and {expected.tickets} tickets, but L1 is "
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
    most = expected.barriers + expected.tickets
    if (arrivals, waits) != (most, most):
        yield Finding(
            LintCheck.BARRIERS,
            f"{expected.barriers} device-wide barriers and {expected.tickets} tickets were meant, "
            f"the assembly has {arrivals} releases and {waits} invalidations",
        )
