"""What programs of a launch count their arrivals on: an i32 that counts on from barrier to barrier
and from launch to launch (`device.grid_barrier`), or that a ticket leaves at zero
(`device.is_last`).

A barrier needs a count that is a multiple of its programs before anyone arrives. So each stream and
each number of programs has a semaphore of its own: launches on one stream run one after the other.
Behind a ticket the number does not matter. All are cut from one block that is made together with
the kernel, not at a launch, which may happen while memory belongs to a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import torch

from hemstitch.runtime.cuda.device import Device

SLOTS = 32  # streams x numbers of programs that one kernel is likely to see, and captures
APART = 32  # i32 from one to the next: a cache line
MOST_ARRIVALS = 1 << 30  # before it starts anew: half of what an i32 counts to


@dataclass(frozen=True, slots=True)
class _Slot:
    word: torch.Tensor
    launches: Iterator[int]  # counts them; atomic where threads share a stream
    anew: int  # launches after which it starts at zero


@dataclass(frozen=True, slots=True)
class Semaphores:
    """Of one kernel on one device. `left`: arrivals of each program that a launch leaves counted;
    none where it ends behind a ticket."""

    device: Device
    left: int
    block: torch.Tensor
    slots: dict[tuple[int, int], _Slot] = field(default_factory=dict)
    words: Iterator[int] = field(default_factory=count)  # how many of the block are taken

    def take(self, stream: int, programs: int) -> torch.Tensor:
        """The semaphore of a launch on `stream`, the current one, ready for it. Whoever launches
        holds it until the launch is made.

        A graph that is being captured gets one of its own, since it may run on any stream. As often
        as it runs nobody counts: what a launch does not leave at zero, the graph sets to zero.
        """
        if self.device.is_capturing():
            return self.device.zeros(1) if self.left else self._word()
        key = (stream, programs if self.left else 0)
        slot = self.slots.get(key)
        if slot is None:
            if len(self.slots) == SLOTS:
                return self.device.zeros(1)
            anew = max(1, MOST_ARRIVALS // max(1, programs * self.left))
            slot = self.slots.setdefault(key, _Slot(self._word(), count(), anew))
        number = next(slot.launches)
        if number and number % slot.anew == 0:
            slot.word.zero_()  # on the same stream: after all launches before, before this one
        return slot.word

    def _word(self) -> torch.Tensor:
        """Nobody else's, and zero."""
        start = next(self.words) * APART
        is_there = start + APART <= len(self.block)
        return self.block[start : start + 1] if is_there else self.device.zeros(1)


def semaphores_of(device: Device, left: int) -> Semaphores:
    """Not to be called while a graph is captured."""
    block = device.zeros(SLOTS * APART)
    if block.is_cuda:  # other streams must not come before the zeros
        torch.cuda.current_stream(block.device).synchronize()
    return Semaphores(device, left, block)
