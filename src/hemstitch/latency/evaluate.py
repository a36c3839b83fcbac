"""The time of a GPU kernel and its bound. Takes a disassembly, its launch and an architecture,
gives an `Estimate` with every term of

T = max(waves x warp cycles, work of the busiest pipe, bytes / bandwidth) + barriers

This is FusionStitching's latency evaluator (waves x instructions x cycles per instruction), with
cycles from machine code instead of a table, and with bounds for resources that all warps share. The
last wave counts a program that runs all of the code, also what only some programs run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hemstitch.latency.architecture import UNCALIBRATED, Architecture
from hemstitch.latency.cycles import WarpCycles, warp_cycles
from hemstitch.latency.disassembly import Disassembly, SourceLine
from hemstitch.latency.loops import find_loops
from hemstitch.latency.occupancy import Occupancy, occupancy
from hemstitch.latency.opcodes import Pipe, kind_of, matrix_flops, width_bits
from hemstitch.latency.ptx import PtxInstruction
from hemstitch.machine.gpu_numbers import GPU


class Bound(Enum):
    """A term of the estimate, or the reason why there is none."""

    LATENCY = "latency"
    PIPE = "pipe"
    MEMORY = "memory bandwidth"
    CACHE = "cache bandwidth"
    LAUNCH = "it cannot be launched"


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What the machine code does not say."""

    programs: int
    warps: int  # of a program
    shared_bytes: int = 0  # dynamic, of a program
    memory_bytes: float = 0.0  # all programs together, to and from memory
    cache_bytes: float = 0.0  # the same, to and from L2
    barriers: int = 0  # device-wide
    matrix_flops: float | None = None  # all programs together; counted in the code if None
    trips: Mapping[SourceLine, float] = field(default_factory=dict)  # see loops.find_loops
    shares: Mapping[SourceLine, float] = field(default_factory=dict)  # see cycles.warp_cycles


@dataclass(frozen=True, slots=True)
class Estimate:
    """Times in seconds. `calibration`: the source of the measured constants."""

    occupancy: Occupancy
    waves: float  # how often the GPU is filled; the last wave may be partial
    warp_cycles: float  # of an average program
    slowest_cycles: float  # of a program that runs all of the code, as the last block does
    instructions: float  # of an average warp
    latency_seconds: float
    pipe_seconds: Mapping[Pipe, float]
    memory_seconds: float
    cache_seconds: float
    barrier_seconds: float
    unknown_opcodes: tuple[str, ...]  # counted as issue slots only
    calibration: str

    @property
    def terms(self) -> Mapping[Bound, float]:
        """Seconds by bound; the largest counts."""
        return {
            Bound.LATENCY: self.latency_seconds,
            Bound.PIPE: max(self.pipe_seconds.values()),
            Bound.MEMORY: self.memory_seconds,
            Bound.CACHE: self.cache_seconds,
        }

    @property
    def bound(self) -> Bound:
        if not self.occupancy.blocks:
            return Bound.LAUNCH
        terms = self.terms
        return max(terms, key=lambda term: terms[term])

    @property
    def busiest_pipe(self) -> Pipe:
        return max(self.pipe_seconds, key=lambda pipe: self.pipe_seconds[pipe])

    @property
    def seconds(self) -> float:
        """Infinite for a kernel that cannot be launched."""
        if not self.occupancy.blocks:
            return math.inf
        return max(self.terms.values()) + self.barrier_seconds

    @property
    def rank(self) -> tuple[float, float]:
        """A sort key for candidates: seconds, then the sum of all terms. The sum separates
        candidates with the same memory bound."""
        return self.seconds, sum(self.terms.values())

    def __str__(self) -> str:
        terms = ", ".join(
            f"{bound.value} {seconds * 1e6:.2f}" for bound, seconds in self.terms.items()
        )
        return (
            f"{self.seconds * 1e6:.2f} us, bound by {self.bound.value} "
            f"({terms}, barriers {self.barrier_seconds * 1e6:.2f}; "
            f"busiest pipe {self.busiest_pipe.value}); {self.occupancy}; {self.waves:.2f} waves of "
            f"{self.warp_cycles:.0f} clocks"
            + (f"; {UNCALIBRATED}" if self.calibration == UNCALIBRATED else "")
        )


def evaluate(
    code: Disassembly,
    launch: LaunchFacts,
    architecture: Architecture,
    ptx: Sequence[PtxInstruction] = (),
) -> Estimate:
    """The estimate of one launch. `ptx`: lets loops that ptxas unrolled be counted correctly."""
    resident = occupancy(
        architecture,
        registers=code.resources.registers,
        shared_bytes=code.resources.shared_bytes + launch.shared_bytes,
        warps=launch.warps,
    )
    loops = find_loops(code, launch.trips, ptx)
    warp = warp_cycles(code, loops, architecture.fitted, launch.shares)
    slowest = warp_cycles(code, loops, architecture.fitted) if launch.shares else warp
    waves = launch.programs / max(1, resident.blocks * architecture.sms)
    clocks = (math.ceil(waves) - 1) * warp.cycles + slowest.cycles
    return Estimate(
        occupancy=resident,
        waves=waves,
        warp_cycles=warp.cycles,
        slowest_cycles=slowest.cycles,
        instructions=warp.instructions,
        latency_seconds=clocks / architecture.clock_hertz,
        pipe_seconds=_pipe_seconds(warp, launch, architecture),
        memory_seconds=launch.memory_bytes / architecture.copy_bytes_per_second,
        cache_seconds=launch.cache_bytes / architecture.fitted.cache_bytes_per_second,
        barrier_seconds=launch.barriers * architecture.fitted.barrier_seconds,
        unknown_opcodes=tuple(
            sorted({row.opcode for row, _ in warp.ran if kind_of(row.opcode) is None})
        ),
        calibration=architecture.fitted.source,
    )


def _pipe_seconds(
    warp: WarpCycles, launch: LaunchFacts, architecture: Architecture
) -> Mapping[Pipe, float]:
    """Of the SM with the most programs."""
    warps = math.ceil(launch.programs / architecture.sms) * launch.warps
    clocks = dict.fromkeys(Pipe, 0.0)
    for row, runs in warp.ran:
        kind = kind_of(row.opcode)
        if kind is not None and kind.pipe is Pipe.MATRIX:
            flops = matrix_flops(row.opcode) or 0
            clocks[Pipe.MATRIX] += runs * flops / architecture.matrix_flops_per_clock
        elif kind is not None and kind.pipe is not Pipe.ISSUE:
            words = _words_per_thread(row.opcode) if kind.pipe is Pipe.MEMORY else 1.0
            clocks[kind.pipe] += runs * words * GPU.warp_threads / architecture.lanes_of(kind.pipe)
    clocks[Pipe.ISSUE] = warp.instructions / GPU.schedulers
    seconds = {pipe: cycles * warps / architecture.clock_hertz for pipe, cycles in clocks.items()}
    if launch.matrix_flops is not None:
        rate = architecture.matrix_flops_per_clock * architecture.clock_hertz * architecture.sms
        seconds[Pipe.MATRIX] = launch.matrix_flops / rate
    return seconds


def _words_per_thread(opcode: str) -> float:
    """32-bit words that each thread moves, which occupy the load/store unit."""
    return max(1.0, width_bits(opcode) / 32)
