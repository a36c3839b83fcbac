"""Intel's GPUs. Takes torch's index of a device, gives its description from torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from hemstitch.errors import KernelBuildError
from hemstitch.runtime.gpu.device import Device
from hemstitch.runtime.recycling import empty_strided_on

_XPU: Any = torch._C  # a build without XPU has none of these names


@cache
def device_of(index: int) -> Device:
    """By torch's device index."""
    properties = torch.xpu.get_device_properties(index)
    place = torch.device("xpu", index)
    empty = empty_strided_on(place)
    not_capturing: Callable[[], bool] = lambda: False  # noqa: E731
    return Device(
        index=index,
        name=properties.name,
        target="pvc",
        processors=properties.gpu_subslice_count,
        memory_bytes_per_second=None,
        stream=_XPU._xpu_getCurrentRawStream,
        current=_XPU._xpu_getDevice,
        exchange=_XPU._xpu_exchangeDevice,
        is_capturing=not_capturing,
        empty=lambda count: empty((count,), (1,), torch.uint8),
        zeros=partial(torch.zeros, dtype=torch.int32, device=place),
        resident_blocks=_resident_blocks,
    )


def _resident_blocks(function: int, warps: int, shared_bytes: int) -> int:
    raise KernelBuildError("this driver gives no occupancy: a grid-wide barrier needs it")
