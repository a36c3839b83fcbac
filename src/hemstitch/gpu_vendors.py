"""The GPU vendors that kernels are made for, by torch's device type, also the name of the target.
A new vendor is a row here, the module that it names, and what Triton calls its targets (`BACKENDS`
in `toolchain/triton_cross.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GPUVendor:
    """`driver`: the module whose `device_of(index)` describes a device, as `runtime/gpu/device.py`
    says. `processors`: what torch calls the number of multiprocessors among a device's
    properties."""

    driver: str
    processors: str


VENDORS: Mapping[str, GPUVendor] = MappingProxyType(
    {"cuda": GPUVendor("hemstitch.runtime.gpu.nvidia", "multi_processor_count")}
)
