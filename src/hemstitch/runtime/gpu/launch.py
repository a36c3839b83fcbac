"""Launches of a kernel of the plan. What can be known of a call is looked up by its sizes and
alignment; the launch itself is one call of Triton's compiled launcher, without its per-call path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from hemstitch.runtime.gpu.device import Device
from hemstitch.runtime.gpu.grid import Grid, grid_of
from hemstitch.runtime.gpu.loaded_kernel import GPUKernel, Variant, load, variant_of
from hemstitch.runtime.gpu.semaphore import Semaphores, semaphores_of
from hemstitch.targets.gpu.kernel import TritonProgram
from hemstitch.toolchain.triton_cross import ALIGNMENT

MOST_CALLS = 256  # sizes and alignments that are remembered for one kernel; the oldest goes first


@dataclass(frozen=True, slots=True)
class _LaunchCall:
    """All that calls with the same sizes and alignment share."""

    loaded: GPUKernel
    grid: Grid


class Launcher:
    """Call with the tensors, the sizes and an address of scratch that is not used."""

    def __init__(
        self, program: TritonProgram, find: Callable[[int], Device], *, cache: bool = False
    ) -> None:
        self.program = program
        self._find = find
        self._cache = cache
        self._by_device: dict[int, _OnDevice] = {}

    def __call__(self, *arguments: Any) -> None:
        index = arguments[0].get_device()
        there = self._by_device.get(index)
        (self._on(index) if there is None else there)(arguments)

    def prepare(self, index: int, sizes: tuple[int, ...]) -> None:
        """Compile for a device ahead of the first call."""
        with _disable_current_modes():  # PyTorch compiles among fake tensors, semaphores are real
            self._on(index).call_for(sizes, aligned=True)

    def _on(self, index: int) -> _OnDevice:
        found = self._by_device.get(index)
        if found is None:
            made = _OnDevice(self.program, self._find(index), self._cache)
            found = self._by_device.setdefault(index, made)
        return found


class _OnDevice:
    def __init__(self, program: TritonProgram, device: Device, cache: bool) -> None:
        self.program = program
        self.device = device
        self._cache = cache
        self._tensors = len(program.parameters)
        self._variants: dict[Variant, GPUKernel] = {}
        self._calls: dict[tuple[tuple[int, ...], bool], _LaunchCall] = {}
        self._semaphores: Semaphores | None = None
        if program.has_semaphore:
            with device.as_current():
                self._semaphores = semaphores_of(device)

    def __call__(self, arguments: tuple[Any, ...]) -> None:
        count = self._tensors
        addresses = [tensor.data_ptr() for tensor in arguments[:count]]
        bits = 0
        for address in addresses:
            bits |= address
        sizes, aligned = arguments[count:-1], bits % ALIGNMENT == 0
        call = self._calls.get((sizes, aligned)) or self.call_for(sizes, aligned)
        if not call.grid.programs:
            return
        device = self.device
        if device.current() == device.index:
            self._launch(call, addresses, sizes)
        else:
            with device.as_current():
                self._launch(call, addresses, sizes)

    def _launch(self, call: _LaunchCall, addresses: list[int], sizes: tuple[int, ...]) -> None:
        """Scratch is let go of at the end: the allocator gives it to nobody but later work of the
        same stream."""
        loaded, grid, device = call.loaded, call.grid, self.device
        stream = device.stream(device.index)
        if grid.offsets:
            scratch = device.empty(grid.scratch_bytes)
            start = scratch.data_ptr()
            addresses += [start + offset for offset in grid.offsets]
        if self._semaphores is not None:
            semaphore = self._semaphores.take(stream)
            addresses.append(semaphore.data_ptr())
        loaded.run(
            *(grid.programs, 1, 1, stream, loaded.function, loaded.packed),
            *(None, None, None),
            *addresses,
            *sizes,
        )

    def call_for(self, sizes: tuple[int, ...], aligned: bool) -> _LaunchCall:
        loaded = self._loaded(variant_of(aligned, sizes))
        call = _LaunchCall(loaded, grid_of(self.program, sizes, loaded.resident))
        while len(self._calls) >= MOST_CALLS:
            self._calls.pop(next(iter(self._calls)), None)
        return self._calls.setdefault((sizes, aligned), call)

    def _loaded(self, variant: Variant) -> GPUKernel:
        found = self._variants.get(variant)
        if found is None:
            loaded = load(self.program, variant, self.device, cache=self._cache)
            found = self._variants.setdefault(variant, loaded)
        return found
