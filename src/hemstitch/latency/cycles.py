"""The cycles of one warp alone. Takes instructions, loops and the latencies of an architecture;
issues the instructions in order, as their control bits say. Gives clocks, and how often each
instruction runs.

A wait for a scoreboard ends when all results that release it are there. A loop is simulated for two
iterations; the second one stands for all that follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from hemstitch.latency.architecture import Fitted
from hemstitch.latency.disassembly import SCOREBOARDS, Disassembly, Instruction, SourceLine
from hemstitch.latency.loops import MachineLoop, body
from hemstitch.latency.opcodes import BULK_LOADS, Wait, kind_of

GROUP_END = "gsb0"  # ends a group of warpgroup matmuls, which WARPGROUP.DEPBAR counts as one
BULK, MATMULS, GROUPS = SCOREBOARDS, SCOREBOARDS + 1, SCOREBOARDS + 2  # queues beside scoreboards


@dataclass(frozen=True, slots=True)
class WarpCycles:
    """`cycles`: of one warp. `ran`: each instruction with how often it runs, averaged over
    programs."""

    cycles: float
    ran: tuple[tuple[Instruction, float], ...]

    @property
    def instructions(self) -> float:
        return sum(times for _, times in self.ran)


@dataclass(slots=True)
class _Clock:
    """`time`: of the next issue. `pending`: for each queue, when its entries complete. `copies`:
    when all asynchronous copies outside any group complete."""

    time: float = 0.0
    pending: list[list[float]] = field(default_factory=lambda: [[] for _ in range(GROUPS)])
    copies: float = 0.0

    def wait(self, queue: int, may_remain: int = 0) -> None:
        entries = self.pending[queue]
        done = entries[: len(entries) - may_remain]
        self.time = max(self.time, *done) if done else self.time
        self.pending[queue] = entries[len(done) :]

    def shift(self, clocks: float) -> None:
        self.time += clocks
        self.copies += clocks
        self.pending = [[ready + clocks for ready in queue] for queue in self.pending]


def warp_cycles(
    code: Disassembly,
    loops: Sequence[MachineLoop],
    fitted: Fitted,
    shares: Mapping[SourceLine, float] | None = None,
) -> WarpCycles:
    """The cycles of one warp. `shares`: for a source line, the fraction of programs that run it,
    where that is below 1."""
    instructions = body(code)
    weights = shares or {}
    clock = _Clock()
    _run(instructions, tuple(loops), fitted, weights, clock)
    ran = []
    for row in instructions:
        times = _share(row, weights)
        for loop in loops:
            if loop.holds(row.address):
                times *= loop.trips
        ran.append((row, times))
    return WarpCycles(clock.time, tuple(ran))


def _share(row: Instruction, shares: Mapping[SourceLine, float]) -> float:
    return min((shares[line] for line in row.lines if line in shares), default=1.0)


def _run(
    rows: Sequence[Instruction],
    loops: tuple[MachineLoop, ...],
    fitted: Fitted,
    shares: Mapping[SourceLine, float],
    clock: _Clock,
) -> None:
    """Simulates `rows`. `loops` lie within the rows; of two that begin together the outer one comes
    first."""
    position = 0
    while position < len(rows):
        row, rest = rows[position], rows[position:]
        share = _share(row, shares)
        loop = next((candidate for candidate in loops if candidate.first == row.address), None)
        if share < 1.0:
            part = list(takewhile(partial(_has_share, share, shares), rest))
            whole = tuple(candidate for candidate in loops if _lies_in(candidate, part))
            _scaled(part, whole, share, fitted, clock)
            position += len(part)
        elif loop is not None:
            part = [candidate for candidate in rest if loop.holds(candidate.address)]
            nested = tuple(inner for inner in loops if inner is not loop and _lies_in(inner, part))
            _repeat(part, nested, loop.trips, fitted, shares, clock)
            position += len(part)
        else:
            _issue(row, fitted, clock)
            position += 1


def _has_share(share: float, shares: Mapping[SourceLine, float], row: Instruction) -> bool:
    return _share(row, shares) == share


def _lies_in(loop: MachineLoop, rows: Sequence[Instruction]) -> bool:
    return rows[0].address <= loop.first and loop.last <= rows[-1].address


def _scaled(
    rows: Sequence[Instruction],
    loops: tuple[MachineLoop, ...],
    share: float,
    fitted: Fitted,
    clock: _Clock,
) -> None:
    start = clock.time
    _run(rows, loops, fitted, {}, clock)
    clock.shift((clock.time - start) * (share - 1.0))


def _repeat(
    rows: Sequence[Instruction],
    loops: tuple[MachineLoop, ...],
    trips: float,
    fitted: Fitted,
    shares: Mapping[SourceLine, float],
    clock: _Clock,
) -> None:
    start = clock.time
    _run(rows, loops, fitted, shares, clock)
    if trips <= 1.0:
        clock.shift((clock.time - start) * (trips - 1.0))
        return
    second_start = clock.time
    _run(rows, loops, fitted, shares, clock)
    clock.shift((clock.time - second_start) * (trips - 2.0))


def _issue(row: Instruction, fitted: Fitted, clock: _Clock) -> None:
    for scoreboard in row.control.waits_for:
        clock.wait(scoreboard)
    _wait_in_order(row, clock)
    kind = kind_of(row.opcode)
    wait = kind.wait if kind else Wait.FIXED
    latency = fitted.latency_cycles[wait]
    if row.control.write_scoreboard is not None and row.base != "LDGDEPBAR":
        clock.pending[row.control.write_scoreboard].append(clock.time + latency)
    if row.control.read_scoreboard is not None:
        read = min(latency, fitted.latency_cycles[Wait.STORE])
        clock.pending[row.control.read_scoreboard].append(clock.time + read)
    _start_asynchronous(row, wait, latency, clock)
    clock.time += max(1, row.control.stall)
    if wait is Wait.BARRIER:
        clock.time += latency


def _wait_in_order(row: Instruction, clock: _Clock) -> None:
    """Waits that may leave the most recent entries of a queue pending."""
    if row.opcode.startswith("DEPBAR"):
        match = re.match(r"SB(\d)", row.operands[0]) if row.operands else None
        clock.wait(int(match[1]) if match else 0, _number(row.operands[1:]))
    elif row.opcode.startswith("WARPGROUP.DEPBAR"):
        clock.wait(MATMULS, _number(row.operands[1:]))
    elif row.opcode.startswith("SYNCS.PHASECHK") and clock.pending[BULK]:
        clock.wait(BULK, len(clock.pending[BULK]) - 1)


def _start_asynchronous(row: Instruction, wait: Wait, latency: float, clock: _Clock) -> None:
    if row.base == "LDGSTS":
        clock.copies = max(clock.copies, clock.time + latency)
    elif row.base == "LDGDEPBAR":
        clock.pending[row.control.write_scoreboard or 0].append(clock.copies)
    elif row.base in BULK_LOADS:
        clock.pending[BULK].append(clock.time + latency)
    elif wait is Wait.WARPGROUP and GROUP_END in row.operands:
        clock.pending[MATMULS].append(clock.time + latency)


def _number(operands: Sequence[str]) -> int:
    return int(operands[0], 0) if operands else 0
