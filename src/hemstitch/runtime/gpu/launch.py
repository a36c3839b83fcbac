"""Launches of a kernel. Its grid and machine code are cached by sizes and alignment; a launch is
one call of Triton's compiled launcher, without Triton's per-call Python path.
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

MOST_CALLS = 256  # cached sizes and alignments of one kernel; the oldest is dropped first


@dataclass(frozen=True, slots=True)
class _LaunchCall:
    """What calls with the same sizes and alignment share."""

    loaded: GPUKernel
    grid: Grid


class Launcher:
    """Called with the tensors, the sizes, and a scratch address that is ignored."""

    def __init__(
        self, program: TritonProgram, find: Callable[[int], Device], *, cache: bool = False
    ) -> None:
        self.program = program
        self._find = find
        self._cache = cache
        self._by_device: dict[int, _DeviceLauncher] = {}

    def __call__(self, *arguments: Any) -> None:
        index = arguments[0].get_device()
        launcher = self._by_device.get(index)
        (self._for_device(index) if launcher is None else launcher)(arguments)

    def prepare(self, index: int, sizes: tuple[int, ...]) -> None:
        """Compile for a device before the first call."""
        with _disable_current_modes():  # PyTorch compiles with fake tensors; semaphores are real
            self._for_device(index).call_for(sizes, aligned=True)

    def _for_device(self, index: int) -> _DeviceLauncher:
        launcher = self._by_device.get(index)
        if launcher is None:
            new = _DeviceLauncher(self.program, self._find(index), self._cache)
            launcher = self._by_device.setdefault(index, new)
        return launcher


class _DeviceLauncher:
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
        """Scratch is freed on return: the allocator reuses it only for later work on the same
        stream."""
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
        loaded = self._variants.get(variant)
        if loaded is None:
            new = load(self.program, variant, self.device, cache=self._cache)
            loaded = self._variants.setdefault(variant, new)
        return loaded
