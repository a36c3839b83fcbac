"""What the emulator finds wrong with a kernel. Generated kernels are ours, so each is an
InternalError; `where` is the line of the kernel."""

from __future__ import annotations

from hemstitch.errors import InternalError


class EmulationError(InternalError):
    """A kernel did something that a GPU does not define, or that the emulator does not know."""

    advice = "this is a bug in the kernel: please report it with this message and the program"


class RaceError(EmulationError):
    """Two accesses to one byte, one of them writing, that nothing orders."""


class DeadlockError(EmulationError):
    """Programs wait for a value that no program will write."""


class OutOfBoundsError(EmulationError):
    """An access outside every tensor argument."""


class UnwrittenScratchError(EmulationError):
    """Scratch memory was read before it was written."""
