"""A GPU as launches use it: its properties, its current stream, memory on it. What asks a vendor's
driver is in the module that `gpu_vendors.py` names for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from hemstitch.gpu_vendors import VENDORS
from hemstitch.latency.architecture import ARCHITECTURES, Architecture


@dataclass(frozen=True, slots=True)
class Device:
    """`stream` gives the raw handle of the device's current stream. `current` and `exchange` get
    and set the current device of this thread; `exchange` returns the previous one.
    `resident_blocks(function, warps, shared bytes)`: thread blocks of a loaded function on a
    multiprocessor of the current device. `may_relax_registers`: the assembler takes a limit of
    registers for each thread, and where it spilled a higher one is tried."""

    index: int
    name: str
    target: str  # such as sm_90
    processors: int
    memory_bytes_per_second: float | None  # from the driver, if PyTorch exposes it
    stream: Callable[[int], int]
    current: Callable[[], int]
    exchange: Callable[[int], int]
    is_capturing: Callable[[], bool]
    empty: Callable[[int], torch.Tensor]  # bytes; on the current device
    zeros: Callable[[int], torch.Tensor]  # i32
    resident_blocks: Callable[[int, int, int], int]
    may_relax_registers: bool = False

    @property
    def architecture(self) -> Architecture | None:
        """None for a GPU without a table of limits."""
        table = ARCHITECTURES.get(self.target)
        if table is None:
            return None
        bandwidth = self.memory_bytes_per_second or table.memory_bytes_per_second
        return replace(table, sms=self.processors, memory_bytes_per_second=bandwidth)

    @contextmanager
    def as_current(self) -> Iterator[None]:
        before = self.exchange(self.index)
        try:
            yield
        finally:
            self.exchange(before)


def device_of(kind: str, index: int) -> Device:
    """By torch's device type and index."""
    vendor: Any = importlib.import_module(VENDORS[kind].driver)
    device: Device = vendor.device_of(index)
    return device


def current_index(kind: str) -> int:
    """Of the current device of a type."""
    index: int = torch.get_device_module(kind).current_device()
    return index
