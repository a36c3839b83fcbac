"""Takes a `@triton.jit` kernel and its arguments in this machine's memory, runs it without a GPU,
and gives what it did: the correctness oracle for generated kernels.

It raises where a GPU defines nothing: accesses out of bounds, races, reads of garbage, deadlocks.
What it cannot see: whether all programs fit on the device at once, hardware's approximate functions
and the products that the compiler fuses with sums, and, but for `Checks.threads`, what happens
between the threads of a program. Other threads of this process must not compile Triton meanwhile,
but through `toolchain/triton_cross.py`, which waits.
"""

from testing.emulator.checked_builder import FailedAssertion
from testing.emulator.checked_memory import Checks
from testing.emulator.emulated_launch import Findings, emulate
from testing.emulator.findings import (
    DeadlockError,
    EmulationError,
    OutOfBoundsError,
    RaceError,
    UnwrittenScratchError,
)
from testing.emulator.programs import Order

__all__ = [
    "Checks",
    "DeadlockError",
    "EmulationError",
    "FailedAssertion",
    "Findings",
    "Order",
    "OutOfBoundsError",
    "RaceError",
    "UnwrittenScratchError",
    "emulate",
]
