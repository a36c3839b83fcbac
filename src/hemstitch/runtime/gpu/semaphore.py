"""The semaphores of grid-wide barriers and last-block reductions: an i32 whose sign a barrier flips
(`device.grid_barrier`), and which a last-block reduction resets to zero (`device.is_last`).
Every launch leaves it ready for the next, so that launches on one stream share one. All come from
one block, allocated with the kernel and not by a launch, which may be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import torch

from hemstitch.machine.gpu_numbers import GPU
from hemstitch.runtime.gpu.device import Device

SLOTS = 32  # streams and captures that one kernel is likely to see
STRIDE = GPU.line_bytes // 4  # i32 between two semaphores: a cache line


@dataclass(frozen=True, slots=True)
class Semaphores:
    """Of one kernel on one device."""

    device: Device
    block: torch.Tensor
    slots: dict[int, torch.Tensor] = field(default_factory=dict)  # by stream
    taken: Iterator[int] = field(default_factory=count)  # semaphores of the block that are taken

    def take(self, stream: int) -> torch.Tensor:
        """The semaphore of a launch on `stream`, the current one. The caller holds it until the
        launch is submitted. A graph under capture gets its own, since it may run on any stream."""
        if self.device.is_capturing():
            return self._unused()
        semaphore = self.slots.get(stream)
        if semaphore is None:
            if len(self.slots) == SLOTS:
                return self.device.zeros(1)
            semaphore = self.slots.setdefault(stream, self._unused())
        return semaphore

    def _unused(self) -> torch.Tensor:
        """An unused semaphore, zero. Once the block is used up it is a new tensor, which a CUDA
        graph zeroes in each replay."""
        start = next(self.taken) * STRIDE
        fits = start + STRIDE <= len(self.block)
        return self.block[start : start + 1] if fits else self.device.zeros(1)


def semaphores_of(device: Device) -> Semaphores:
    """Not to be called during a graph capture."""
    block = device.zeros(SLOTS * STRIDE)
    if block.device.type != "cpu":  # other streams must not read it before it is zeroed
        torch.get_device_module(block.device).current_stream(block.device).synchronize()
    return Semaphores(device, block)
