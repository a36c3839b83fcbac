"""Occupancy: how many blocks of a kernel one SM holds at a time, and what limits it, as NVIDIA's
occupancy calculator computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from hemstitch.latency.architecture import Architecture
from hemstitch.machine.gpu_numbers import GPU


class Limiter(Enum):
    WARPS = "warps"
    REGISTERS = "registers"
    SHARED = "shared memory"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """`limits`: blocks per SM that each resource alone allows."""

    limits: Mapping[Limiter, int]
    warps_per_block: int

    @property
    def blocks(self) -> int:
        """Blocks per SM; 0 if the kernel cannot be launched."""
        return min(self.limits.values())

    @property
    def warps(self) -> int:
        return self.blocks * self.warps_per_block

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        """The resources that allow no more blocks than `blocks`."""
        return tuple(limiter for limiter, most in self.limits.items() if most == self.blocks)

    def __str__(self) -> str:
        names = " and ".join(limiter.value for limiter in self.limiters)
        return f"{self.blocks} blocks of {self.warps_per_block} warps, limited by {names}"


def occupancy(
    architecture: Architecture, *, registers: int, shared_bytes: int, warps: int
) -> Occupancy:
    """`registers`: per thread. `shared_bytes`: static and dynamic, per block. `warps`: per
    block."""
    limits = {
        Limiter.WARPS: _by_warps(architecture, warps),
        Limiter.REGISTERS: _by_registers(architecture, registers, warps),
        Limiter.SHARED: _by_shared(architecture, shared_bytes),
        Limiter.BLOCKS: architecture.blocks,
    }
    return Occupancy(MappingProxyType(limits), warps)


def _by_warps(architecture: Architecture, warps: int) -> int:
    return (
        architecture.warps // warps
        if warps * GPU.warp_threads <= architecture.threads_per_block
        else 0
    )


def _by_registers(architecture: Architecture, registers: int, warps: int) -> int:
    of_warp = _round_up(registers * GPU.warp_threads, architecture.register_granularity)
    # A block is admitted as if its warps filled all four sub-partitions equally.
    fits = of_warp * _round_up(warps, GPU.schedulers) <= architecture.registers
    if not fits or registers > architecture.registers_per_thread:
        return 0
    return architecture.registers // GPU.schedulers // of_warp * GPU.schedulers // warps


def _by_shared(architecture: Architecture, shared_bytes: int) -> int:
    reserved = architecture.reserved_shared_bytes
    of_block = _round_up(shared_bytes + reserved, architecture.shared_granularity)
    if of_block > architecture.shared_bytes_per_block + reserved:
        return 0
    return architecture.shared_bytes // of_block


def _round_up(count: int, granularity: int) -> int:
    return -(-count // granularity) * granularity
