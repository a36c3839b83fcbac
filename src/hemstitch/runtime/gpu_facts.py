"""Properties of a GPU for planning and code generation, from torch."""

from __future__ import annotations

import torch

EMULATED_PROGRAMS = 4  # of one launch at most: enough for races between them


def multiprocessors(device: torch.device) -> int | None:
    """The number of multiprocessors; None for a processor, and for an absent GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def has_full_f32_matmul() -> bool:
    """Whether matmuls of f32 do not use TF32, PyTorch's default. Only its newer setting is read:
    the older one raises once the newer one was set."""
    return torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
