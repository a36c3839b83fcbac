"""NVIDIA's GPUs. Takes torch's index of a device, gives its description from torch and driver."""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import torch

from hemstitch.errors import KernelBuildError
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.runtime.gpu.device import Device
from hemstitch.runtime.recycling import empty_strided_on

_CUDA: Any = torch._C  # a build without CUDA has none of these names
DRIVER = "libcuda.so.1"  # Triton has loaded it


@cache
def device_of(index: int) -> Device:
    """By torch's device index."""
    major, minor = torch.cuda.get_device_capability(index)
    properties = torch.cuda.get_device_properties(index)
    place = torch.device("cuda", index)
    empty = empty_strided_on(place)
    return Device(
        index=index,
        name=torch.cuda.get_device_name(index),
        target=f"sm_{major}{minor}",
        processors=properties.multi_processor_count,
        memory_bytes_per_second=_bandwidth(properties),
        stream=_CUDA._cuda_getCurrentRawStream,
        current=_CUDA._cuda_getDevice,
        exchange=_CUDA._cuda_exchangeDevice,
        is_capturing=_CUDA._cuda_isCurrentStreamCapturing,
        empty=lambda count: empty((count,), (1,), torch.uint8),
        zeros=partial(torch.zeros, dtype=torch.int32, device=place),
        resident_blocks=resident_blocks,
        may_relax_registers=True,
    )


def _bandwidth(properties: Any) -> float | None:
    """Double data rate: two transfers for each clock."""
    kilohertz = getattr(properties, "memory_clock_rate", None)
    bits = getattr(properties, "memory_bus_width", None)
    return 2e3 * kilohertz * bits / 8 if kilohertz and bits else None


def resident_blocks(function: int, warps: int, shared_bytes: int) -> int:
    """Resident thread blocks of a loaded function on a multiprocessor of the current device: the
    driver's limit of cooperative launches."""
    count = ctypes.c_int()
    status = ctypes.CDLL(DRIVER).cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(count),
        ctypes.c_void_p(function),
        ctypes.c_int(warps * GPU.warp_threads),
        ctypes.c_size_t(shared_bytes),
    )
    if status:
        raise KernelBuildError(f"the driver does not tell the occupancy: error {status}")
    return count.value
