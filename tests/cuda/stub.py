"""A CUDA driver that runs nothing but writes down what it is asked: Triton's own launcher, compiled
as on a machine with a GPU, calls it. Tensors are in this machine's memory."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from hemstitch.runtime.gpu.device import Device
from hemstitch.runtime.gpu.nvidia import resident_blocks

MOST_ARGUMENTS = 64
HOST = -1  # what `get_device` says of a tensor in this machine's memory


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * MOST_ARGUMENTS),
    )


@dataclass(frozen=True)
class Seen:
    """A launch, as the driver saw it. `device`: whose context was current."""

    grid: tuple[int, ...]
    threads: int
    cooperative: bool
    stream: int
    function: int
    device: int
    arguments: tuple[int, ...]


@dataclass
class Driver:
    """What the tests set, and what they ask."""

    library: Any
    current: int = 0
    stream: int = 7
    capturing: bool = False
    allocated: list[torch.Tensor] = field(default_factory=list)
    exchanges: list[int] = field(default_factory=list)

    def expect(self, types: Sequence[str]) -> None:
        """The types of the arguments of the launches to come."""
        sizes = [8 if type_.startswith("*") or type_ == "i64" else 4 for type_ in types]
        room = (ctypes.c_uint8 * MOST_ARGUMENTS).in_dll(self.library, "stub_argument_bytes")
        room[: len(sizes)] = sizes
        self._number("stub_argument_count").value = len(sizes)

    def set_registers(self, count: int) -> None:
        """What every kernel loaded from now on says it needs."""
        self._number("stub_registers").value = count

    def set_spilled_bytes(self, count: int) -> None:
        """What every kernel loaded from now on says it spills."""
        self._number("stub_local_bytes").value = count

    @property
    def modules(self) -> int:
        return self._number("stub_module_count").value

    @property
    def seen(self) -> list[Seen]:
        count = self._number("stub_launch_count").value
        arguments = self._number("stub_argument_count").value
        launches = (_Launch * count).in_dll(self.library, "stub_launches")
        return [
            Seen(
                grid=tuple(each.grid),
                threads=each.block[0],
                cooperative=bool(each.cooperative),
                stream=each.stream,
                function=each.function,
                device=each.context - 1,
                arguments=tuple(each.arguments[:arguments]),
            )
            for each in launches
        ]

    def forget(self) -> None:
        self._number("stub_launch_count").value = 0
        self.allocated.clear()
        self.exchanges.clear()

    def device(self, index: int = 0, target: str = "sm_90") -> Device:
        return Device(
            index=index,
            name="Stub",
            target=target,
            processors=132,
            memory_bytes_per_second=3.35e12,
            stream=lambda asked: self.stream + asked,
            current=lambda: self.current,
            exchange=self._exchange,
            is_capturing=lambda: self.capturing,
            empty=lambda count: self._keep(torch.full((count,), 255, dtype=torch.uint8)),
            zeros=lambda count: self._keep(torch.zeros(count, dtype=torch.int32)),
            resident_blocks=resident_blocks,
            may_relax_registers=target.startswith("sm_"),
        )

    def _exchange(self, index: int) -> int:
        before, self.current = self.current, index
        self.exchanges.append(index)
        self.library.cuCtxSetCurrent(ctypes.c_void_p(index + 1))
        return before

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.allocated.append(tensor)
        return tensor

    def _number(self, name: str) -> ctypes.c_int:
        return ctypes.c_int.in_dll(self.library, name)


def build_library(folder: Path) -> Any:
    """Loaded under the driver's own name, so that whoever opens that name finds it."""
    path = folder / "libcuda.so.1"
    source = Path(__file__).with_name("libcuda.c")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, "-o", str(path), str(source)], check=True)
    os.symlink(path, folder / "libcuda.so")
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def active(driver: Driver, folder: Path) -> Iterator[None]:
    """Triton takes the stub for the GPU's driver."""
    from triton.backends.nvidia.driver import CudaDriver  # noqa: PLC0415
    from triton.runtime.driver import driver as chosen  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_LIBCUDA_PATH", str(folder))
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        patch.setattr(torch.cuda, "current_device", lambda: driver.current)
        patch.setattr(chosen, "_active", CudaDriver())
        yield
        gc.collect()  # kernels unload themselves through this driver
