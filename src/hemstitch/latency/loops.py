"""Which instructions of a kernel run how often. Takes a disassembly, its PTX, and from the one who
printed the kernel the trips of each loop of the source; gives machine loops with trips of their
own.

A machine loop is a branch back. It belongs to the line of a `for` that stands in its code. What
ptxas unrolled shows in the PTX, where each access of a source line stands once where the machine's
loop has several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hemstitch.latency.disassembly import Disassembly, Instruction, SourceLine
from hemstitch.latency.ptx import PtxInstruction

MOST_IN_A_WAIT = 12  # instructions of a loop that only waits for memory or a barrier
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
    first: int  # address of its first instruction
    last: int  # of the branch back
    line: SourceLine | None  # of the `for`; None where nothing says how often it runs: once then
    unrolled: int  # trips of the source in one of the machine's
    trips: float  # of the machine

    def holds(self, address: int) -> bool:
        return self.first <= address <= self.last


def body(code: Disassembly) -> tuple[Instruction, ...]:
    """What a warp runs through: up to the last exit. Behind it stand subroutines for rare values,
    waits that go round once more, and filling."""
    exits = [place for place, row in enumerate(code.instructions) if row.base == "EXIT"]
    return code.instructions[: exits[-1] + 1] if exits else code.instructions


def find_loops(
    code: Disassembly,
    trips: Mapping[SourceLine, float],
    ptx: Sequence[PtxInstruction] = (),
) -> tuple[MachineLoop, ...]:
    """`trips`: of each `for` line, for one program, an average where programs differ."""
    instructions = body(code)
    edges: dict[int, int] = {}
    for row in instructions:
        if row.target is not None and row.target < row.address:
            edges[row.target] = max(row.address, edges.get(row.target, 0))
    before = _counts_in_ptx(ptx)
    found: list[MachineLoop] = []
    claimed: set[tuple[SourceLine, ...]] = set()
    for first, last in sorted(edges.items(), key=lambda edge: _rank(edge, edges)):
        rows = [row for row in instructions if first <= row.address <= last]
        chain = None if _only_waits(rows) else _for_line(rows, trips, found)
        if chain is None or chain in claimed:  # the rest of an unrolled loop, or part of the loop
            found.append(MachineLoop(first, last, None, 1, 1.0))
            continue
        claimed.add(chain)
        unrolled = _unrolled(rows, before)
        found.append(MachineLoop(first, last, chain[0], unrolled, trips[chain[0]] / unrolled))
    return tuple(sorted(found, key=lambda loop: (loop.first, -loop.last)))


def _rank(edge: tuple[int, int], edges: Mapping[int, int]) -> tuple[int, int]:
    """Inner loops before outer ones, so that they claim their line first; of loops side by side the
    largest, since the others are what unrolling left over."""
    inside = sum(1 for first, last in edges.items() if edge[0] <= first and last <= edge[1])
    return inside, edge[0] - edge[1]


def _only_waits(rows: Sequence[Instruction]) -> bool:
    return len(rows) <= MOST_IN_A_WAIT and any(_WAITS.match(row.opcode) for row in rows)


def _for_line(
    rows: Sequence[Instruction], trips: Mapping[SourceLine, float], inner: Sequence[MachineLoop]
) -> tuple[SourceLine, ...] | None:
    """The line of the `for` and where it was inlined: that of the branch back, or else of what is
    in the loop but in no inner one."""
    taken = {loop.line for loop in inner if rows[0].address <= loop.first <= rows[-1].address}
    own = [row for row in rows if not any(loop.holds(row.address) for loop in inner if loop.line)]
    for row in (rows[-1], *own):
        for place, line in enumerate(row.lines):
            if line in trips and (line not in taken or row is rows[-1]):
                return row.lines[place:]
    return None


def _counts_in_ptx(ptx: Sequence[PtxInstruction]) -> Counts:
    counts: Counts = Counter()
    for row in ptx:
        if row.is_in_loop:
            counts.update(
                (name, row.line) for name, (text, _) in _FAMILIES.items() if text.match(row.opcode)
            )
    return counts


def _unrolled(rows: Sequence[Instruction], before: Counts) -> int:
    """The ratio on which most instructions agree: of special functions only where there are no
    others, since ptxas moves some to another's line."""
    after: Counts = Counter()
    for row in rows:
        line = row.lines[0] if row.lines else None
        after.update(
            (name, line) for name, (_, code) in _FAMILIES.items() if code.match(row.opcode)
        )
    votes: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for (name, line), count in after.items():
        if old := before[name, line]:
            votes[name != "special"][max(1, round(count / old))] += count
    best = votes[True] or votes[False]
    return best.most_common(1)[0][0] if best else 1
