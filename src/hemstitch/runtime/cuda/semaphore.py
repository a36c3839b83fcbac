"""What programs of a launch count their arrivals at barriers on: an i32 that counts on from launch
to launch (`device.grid_barrier`).

A barrier needs a count that is a multiple of its programs before anyone arrives. So each stream and
each number of programs has a semaphore of its own: launches on one stream run one after the other.
All are cut from one block that is made together with the kernel, not at a launch, which may happen
while memory belongs to a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import torch

from hemstitch.runtime.cuda.device import Device

SLOTS = 32  # streams x numbers of programs that one kernel is likely to see
APART = 32  # i32 from one to the next: a cache line
MOST_ARRIVALS = 1 << 30  # before it starts anew: half of what an i32 counts to


@dataclass(frozen=True, slots=True)
class _Slot:
    word: torch.Tensor
    launches: Iterator[int]  # counts them; atomic where threads share a stream
    anew: int  # launches after which it starts at zero


@dataclass(frozen=True, slots=True)
class Semaphores:
    """Of one kernel on one device."""

    device: Device
    barriers: int  # of a launch
    block: torch.Tensor
    slots: dict[tuple[int, int], _Slot] = field(default_factory=dict)
    places: Iterator[int] = field(default_factory=count)  # in the block; atomic, as `launches` is

    def take(self, stream: int, programs: int) -> torch.Tensor:
        """The semaphore of a launch on `stream`, the current one, ready for it. Whoever launches
        holds it until the launch is made.

        A graph that is being captured gets one of its own and sets it to zero whenever it runs: it
        may run on any stream, as often as it likes, and nobody counts.
        """
        slot = self.slots.get((stream, programs))
        if self.device.is_capturing():
            return self.device.zeros(1)
        if slot is None and (slot := self._new_slot(stream, programs)) is None:
            return self.device.zeros(1)
        number = next(slot.launches)
        if number and number % slot.anew == 0:
            slot.word.zero_()  # on the same stream: after all launches before, before this one
        return slot.word

    def _new_slot(self, stream: int, programs: int) -> _Slot | None:
        """None where all are taken. Two threads may ask at once: no two slots share a place."""
        place = next(self.places) if len(self.slots) < SLOTS else SLOTS
        if place >= SLOTS:
            return None
        anew = max(1, MOST_ARRIVALS // (programs * self.barriers))
        slot = _Slot(self.block[place * APART :][:1], count(), anew)
        return self.slots.setdefault((stream, programs), slot)


def semaphores_of(device: Device, barriers: int) -> Semaphores:
    """Not to be called while a graph is captured."""
    block = device.zeros(SLOTS * APART)
    if block.is_cuda:  # other streams must not come before the zeros
        torch.cuda.current_stream(block.device).synchronize()
    return Semaphores(device, barriers, block)
