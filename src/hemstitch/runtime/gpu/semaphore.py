"""What programs of a launch meet at: an i32 whose sign a barrier flips (`device.grid_barrier`), and
which a ticket leaves at zero (`device.is_last`).

Each launch finds it as good as new, so that launches which run one after the other, as those on one
stream do, share one. All are cut from one block that is made together with the kernel, not at a
launch, which may happen while memory belongs to a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import torch

from hemstitch.runtime.gpu.device import Device

SLOTS = 32  # streams that one kernel is likely to see, and captures
APART = 32  # i32 from one to the next: a cache line


@dataclass(frozen=True, slots=True)
class Semaphores:
    """Of one kernel on one device."""

    device: Device
    block: torch.Tensor
    slots: dict[int, torch.Tensor] = field(default_factory=dict)  # by stream
    words: Iterator[int] = field(default_factory=count)  # how many of the block are taken

    def take(self, stream: int) -> torch.Tensor:
        """The semaphore of a launch on `stream`, the current one. Whoever launches holds it until
        the launch is made. A graph that is being captured gets one of its own, since it may run on
        any stream."""
        if self.device.is_capturing():
            return self._word()
        word = self.slots.get(stream)
        if word is None:
            if len(self.slots) == SLOTS:
                return self.device.zeros(1)
            word = self.slots.setdefault(stream, self._word())
        return word

    def _word(self) -> torch.Tensor:
        """Nobody else's, and zero. Where the block is used up, a graph sets its own to zero each
        time that it runs."""
        start = next(self.words) * APART
        is_there = start + APART <= len(self.block)
        return self.block[start : start + 1] if is_there else self.device.zeros(1)


def semaphores_of(device: Device) -> Semaphores:
    """Not to be called while a graph is captured."""
    block = device.zeros(SLOTS * APART)
    if block.is_cuda:  # other streams must not come before the zeros
        torch.cuda.current_stream(block.device).synchronize()
    return Semaphores(device, block)
