"""The hardware numbers of a GPU for the latency estimate. `Architecture`: from data sheets and the
vendor's tools. `Fitted`: what only measurements can tell; a calibration replaces it.

Sources: [occupancy] is NVIDIA's cuda_occupancy.h and the table "Technical Specifications per
Compute Capability" of the CUDA Programming Guide; [throughput] its table "Throughput of Native
Arithmetic Instructions"; [sheet] the data sheet or white paper of the product.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hemstitch.errors import UnsupportedError, near_match
from hemstitch.latency.opcodes import Pipe, Wait
from hemstitch.machine.gpu_numbers import GPU

UNCALIBRATED = "uncalibrated"


@dataclass(frozen=True, slots=True)
class Fitted:
    """Measured constants. The defaults are guesses from published microbenchmarks of Volta to
    Hopper: good enough to rank candidates, not for absolute times."""

    source: str  # "uncalibrated", or the device, driver and date of the measurement
    latency_cycles: Mapping[
        Wait, float
    ]  # total over Wait; from issue to a reader's issue, unloaded
    special_lanes: float  # threads per clock and SM: MUFU and conversions
    memory_lanes: float  # threads per clock and SM: 32-bit accesses of the load/store unit
    copy_share: float  # of `memory_bytes_per_second`, that a large copy reaches
    cache_bytes_per_second: float  # out of L2, all SMs together
    barrier_seconds: float  # a device-wide barrier, all programs already there


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes in bytes, per SM unless the field says otherwise."""

    target: str
    product: str
    sms: int  # [sheet]
    clock_hertz: float  # [sheet], the highest
    memory_bytes_per_second: float  # [sheet], of all SMs together
    warps: int  # [occupancy]
    blocks: int  # [occupancy]
    registers: int  # [occupancy], also the most for a block
    register_granularity: int  # [occupancy], registers that a warp gets at once
    shared_bytes: int  # [occupancy]
    shared_bytes_per_block: int  # [occupancy], with opt-in
    shared_granularity: int  # [occupancy]
    reserved_shared_bytes: int  # [occupancy], the driver's own, of each block
    threads_per_block: int  # [occupancy]
    registers_per_thread: int  # [occupancy]
    lanes: Mapping[Pipe, float]  # threads per clock [throughput]
    matrix_flops_per_clock: float  # f16 inputs, dense: peak / (SMs x clock) [sheet]
    matrix_opcode: str  # expected for a matmul of tiles
    fitted: Fitted

    def lanes_of(self, pipe: Pipe) -> float:
        """Threads that `pipe` processes in a clock."""
        if pipe is Pipe.SPECIAL:
            return self.fitted.special_lanes
        return self.fitted.memory_lanes if pipe is Pipe.MEMORY else self.lanes[pipe]

    @property
    def copy_bytes_per_second(self) -> float:
        return self.memory_bytes_per_second * self.fitted.copy_share


GUESS = Fitted(
    source=UNCALIBRATED,
    latency_cycles=MappingProxyType(
        {
            Wait.FIXED: 6.0,
            Wait.MEMORY: 600.0,
            Wait.ATOMIC: 700.0,
            Wait.LOCAL: 40.0,
            Wait.STORE: 20.0,
            Wait.SHARED: 30.0,
            Wait.SHUFFLE: 25.0,
            Wait.SPECIAL: 24.0,
            Wait.CONSTANT: 30.0,
            Wait.SYSTEM: 25.0,
            Wait.MATRIX: 33.0,
            Wait.WARPGROUP: 130.0,
            Wait.BARRIER: 30.0,
        }
    ),
    special_lanes=16.0,
    memory_lanes=32.0,
    copy_share=0.9,
    cache_bytes_per_second=5.5e12,
    barrier_seconds=1.5e-6,
)
MEASURED_HOPPER = Fitted(
    source="NVIDIA H100 80GB HBM3, driver 580.159.04, 2026-11-27; guessed: constant, local, "
    "matrix, store, system register, warpgroup matrix",
    latency_cycles=MappingProxyType(
        {
            **GUESS.latency_cycles,
            Wait.FIXED: 4.78,
            Wait.MEMORY: 700.0,
            Wait.ATOMIC: 668.0,
            Wait.SHARED: 51.8,
            Wait.SHUFFLE: 23.8,
            Wait.SPECIAL: 18.2,
            Wait.BARRIER: 22.5,
        }
    ),
    special_lanes=15.2,
    memory_lanes=31.1,
    copy_share=0.89,  # of 3.35 TB/s there
    cache_bytes_per_second=8.47e12,
    barrier_seconds=1.05e-6,
)
AMPERE = Architecture(
    target="sm_80",
    product="A100 SXM 80 GB",
    sms=108,
    clock_hertz=1.41e9,
    memory_bytes_per_second=2.039e12,
    warps=64,
    blocks=32,
    registers=65536,
    register_granularity=256,
    shared_bytes=164 << 10,
    shared_bytes_per_block=163 << 10,
    shared_granularity=128,
    reserved_shared_bytes=1 << 10,
    threads_per_block=1024,
    registers_per_thread=256,
    lanes=MappingProxyType(
        {
            Pipe.FMA: 64.0,
            Pipe.MULTIPLY: 64.0,
            Pipe.INTEGER: 64.0,
            Pipe.DOUBLE: 32.0,
            Pipe.ISSUE: float(GPU.schedulers * GPU.warp_threads),
        }
    ),
    matrix_flops_per_clock=2048.0,
    matrix_opcode="HMMA",
    fitted=replace(GUESS, cache_bytes_per_second=5.0e12),
)
HOPPER = replace(
    AMPERE,
    target="sm_90",
    product="H200 SXM",
    sms=132,
    clock_hertz=1.98e9,
    memory_bytes_per_second=4.8e12,
    shared_bytes=228 << 10,
    shared_bytes_per_block=227 << 10,
    lanes=MappingProxyType({**AMPERE.lanes, Pipe.FMA: 128.0, Pipe.DOUBLE: 64.0}),
    matrix_flops_per_clock=4096.0,
    matrix_opcode="HGMMA",
    fitted=MEASURED_HOPPER,
)
BLACKWELL = replace(
    HOPPER,
    target="sm_100",
    product="B200",
    sms=148,
    clock_hertz=1.965e9,
    memory_bytes_per_second=8.0e12,
    matrix_flops_per_clock=8192.0,
    matrix_opcode="UTC",
    fitted=replace(GUESS, cache_bytes_per_second=1.0e13),
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {known.target: known for known in (AMPERE, HOPPER, BLACKWELL)}
)


def architecture(target: str) -> Architecture:
    """The architecture of `target`, such as sm_90. Raises UnsupportedError for an unknown one."""
    if target not in ARCHITECTURES:
        hint = near_match(target, ARCHITECTURES) or f"one of {', '.join(ARCHITECTURES)}"
        raise UnsupportedError(f"no numbers are known for {target}", hint=hint)
    return ARCHITECTURES[target]


def to_json(fitted: Fitted) -> str:
    """`fitted` as JSON text, which `from_json` reads back unchanged."""
    fields: dict[str, Any] = {name: getattr(fitted, name) for name in Fitted.__slots__}
    fields["latency_cycles"] = {wait.value: fitted.latency_cycles[wait] for wait in Wait}
    return json.dumps(fields, indent=2) + "\n"


def from_json(text: str) -> Fitted:
    """Parses the text of `to_json`. Raises ValueError for missing or unknown names and for numbers
    that are not positive."""
    fields = json.loads(text)
    _same_names("constants", set(fields), set(Fitted.__slots__))
    latencies = fields.pop("latency_cycles")
    _same_names("latencies", set(latencies), {wait.value for wait in Wait})
    source = str(fields.pop("source"))
    return Fitted(
        source=source,
        latency_cycles=MappingProxyType(
            {wait: _positive(wait.value, latencies[wait.value]) for wait in Wait}
        ),
        **{name: _positive(name, value) for name, value in fields.items()},
    )


def _same_names(kind: str, names: set[str], expected: set[str]) -> None:
    if names != expected:
        wrong = ", ".join(sorted(names ^ expected))
        raise ValueError(f"{kind} unknown or missing: {wrong}")


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be a positive number, not {value!r}")
    return float(value)
