"""Runs `@triton.jit` kernels without a GPU, on tensors in this machine's memory, and finds what a
GPU would not define: accesses out of bounds, races, reads of garbage, deadlocks.

The correctness oracle for generated kernels. One program is one thread of control: what happens
between the warps of a program is Triton's affair.
"""

from hemstitch.runtime.emulator.errors import (
    DeadlockError,
    EmulationError,
    OutOfBoundsError,
    RaceError,
    UnwrittenScratchError,
)
from hemstitch.runtime.emulator.launch import Findings, emulate
from hemstitch.runtime.emulator.memory import Checks
from hemstitch.runtime.emulator.programs import Order

__all__ = [
    "Checks",
    "DeadlockError",
    "EmulationError",
    "Findings",
    "Order",
    "OutOfBoundsError",
    "RaceError",
    "UnwrittenScratchError",
    "emulate",
]
