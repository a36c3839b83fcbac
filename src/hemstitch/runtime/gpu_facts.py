"""Properties of a GPU for planning and code generation, from torch."""

from __future__ import annotations

import torch

from hemstitch.gpu_vendors import VENDORS

EMULATED_PROGRAMS = 4  # of one launch at most: enough for races between them


def multiprocessors(device: torch.device) -> int | None:
    """The number of multiprocessors; None for a processor, and for an absent GPU."""
    vendor = VENDORS.get(device.type)
    if vendor is None or not torch.get_device_module(device).is_available():
        return None
    properties = torch.get_device_module(device).get_device_properties(device)
    return int(getattr(properties, vendor.processors))


def has_full_f32_matmul() -> bool:
    """Whether matmuls of f32 do not use TF32, PyTorch's default. Only its newer setting is read:
    the older one raises once the newer one was set."""
    return torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
