"""The loops of machine code and their trip counts. Takes a disassembly, its PTX, and the trip
counts of the source's loops; gives machine loops with trip counts of their own.

A machine loop is a backward branch. It belongs to the line of a `for` that its code comes from.
Unrolling by ptxas shows in the PTX: an access that occurs once there occurs several times in the
machine loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hemstitch.latency.disassembly import Disassembly, Instruction, SourceLine
from hemstitch.latency.ptx import PtxInstruction

MAX_SPIN_LOOP = 12  # instructions of a loop that only waits for memory or a barrier
_WAITS = re.compile(r"SYNCS|NANOSLEEP|LDG.*\.STRONG|LD\..*STRONG")
_FAMILIES = {  # in PTX, and in machine code
    "load": (re.compile(r"ld\.(?:\w+\.)*global"), re.compile(r"LDG\b")),
    "store": (re.compile(r"st\.(?:\w+\.)*global"), re.compile(r"STG\b")),
    "copy": (re.compile(r"cp\.async\.c[ag]"), re.compile(r"LDGSTS\b")),
    "atomic": (re.compile(r"atom\.|red\.(?!async)"), re.compile(r"ATOMG|RED")),
    "special": (re.compile(r"ex2|lg2|sqrt|rcp|sin\.|cos\.|tanh|div\..*f32"), re.compile(r"MUFU")),
    "matrix": (re.compile(r"mma\.|wgmma\.mma"), re.compile(r"[HIQ]G?MMA")),
    "shuffle": (re.compile(r"shfl"), re.compile(r"SHFL")),
}
Counts = Counter[tuple[str, SourceLine | None]]


@dataclass(frozen=True, slots=True)
class MachineLoop:
    """`first`, `last`: addresses of its first instruction and of the backward branch. `line`: of
    the `for`, None where it is unknown: then the loop counts as one trip. `unrolled`: source trips
    in one machine trip. `trips`: machine trips."""

    first: int
    last: int
    line: SourceLine | None
    unrolled: int
    trips: float

    def holds(self, address: int) -> bool:
        return self.first <= address <= self.last


def body(code: Disassembly) -> tuple[Instruction, ...]:
    """The instructions up to the last exit. Behind it are slow-path subroutines, spin loops and
    padding."""
    exits = [place for place, row in enumerate(code.instructions) if row.base == "EXIT"]
    return code.instructions[: exits[-1] + 1] if exits else code.instructions


def find_loops(
    code: Disassembly,
    trips: Mapping[SourceLine, float],
    ptx: Sequence[PtxInstruction] = (),
) -> tuple[MachineLoop, ...]:
    """The loops of `body(code)`. `trips`: of each `for` line, for one program; an average where
    programs differ."""
    instructions = body(code)
    edges: dict[int, int] = {}
    for row in instructions:
        if row.target is not None and row.target < row.address:
            edges[row.target] = max(row.address, edges.get(row.target, 0))
    ptx_counts = _counts_in_ptx(ptx)
    loops: list[MachineLoop] = []
    claimed_lines: set[tuple[SourceLine, ...]] = set()
    for first, last in sorted(edges.items(), key=lambda edge: _rank(edge, edges)):
        rows = [row for row in instructions if first <= row.address <= last]
        chain = None if _is_spin_loop(rows) else _for_line(rows, trips, loops)
        if chain is None or chain in claimed_lines:  # a remainder or part of an unrolled loop
            loops.append(MachineLoop(first, last, None, 1, 1.0))
            continue
        claimed_lines.add(chain)
        unrolled = _unrolled(rows, ptx_counts)
        loops.append(MachineLoop(first, last, chain[0], unrolled, trips[chain[0]] / unrolled))
    return tuple(sorted(loops, key=lambda loop: (loop.first, -loop.last)))


def _rank(edge: tuple[int, int], edges: Mapping[int, int]) -> tuple[int, int]:
    """Inner loops before outer ones, so that they claim their line first. Of disjoint loops the
    largest first: the others are remainders of unrolling."""
    inside = sum(1 for first, last in edges.items() if edge[0] <= first and last <= edge[1])
    return inside, edge[0] - edge[1]


def _is_spin_loop(rows: Sequence[Instruction]) -> bool:
    return len(rows) <= MAX_SPIN_LOOP and any(_WAITS.match(row.opcode) for row in rows)


def _for_line(
    rows: Sequence[Instruction], trips: Mapping[SourceLine, float], inner: Sequence[MachineLoop]
) -> tuple[SourceLine, ...] | None:
    """The line of the `for` and its call sites: of the backward branch, or else of an instruction
    that no inner loop contains."""
    inner_lines = {loop.line for loop in inner if rows[0].address <= loop.first <= rows[-1].address}
    own = [row for row in rows if not any(loop.holds(row.address) for loop in inner if loop.line)]
    for row in (rows[-1], *own):
        for depth, line in enumerate(row.lines):
            if line in trips and (line not in inner_lines or row is rows[-1]):
                return row.lines[depth:]
    return None


def _counts_in_ptx(ptx: Sequence[PtxInstruction]) -> Counts:
    counts: Counts = Counter()
    for row in ptx:
        if row.is_in_loop:
            counts.update(
                (name, row.line) for name, (text, _) in _FAMILIES.items() if text.match(row.opcode)
            )
    return counts


def _unrolled(rows: Sequence[Instruction], ptx_counts: Counts) -> int:
    """The unroll factor that most instructions agree on. Special functions count only where there
    are no others, since ptxas moves some to another line."""
    counts: Counts = Counter()
    for row in rows:
        line = row.lines[0] if row.lines else None
        counts.update(
            (name, line) for name, (_, code) in _FAMILIES.items() if code.match(row.opcode)
        )
    votes: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for (name, line), count in counts.items():
        if ptx_count := ptx_counts[name, line]:
            votes[name != "special"][max(1, round(count / ptx_count))] += count
    majority = votes[True] or votes[False]
    return majority.most_common(1)[0][0] if majority else 1
