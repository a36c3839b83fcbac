"""What planning and printing want to know of a GPU, from torch."""

from __future__ import annotations

import torch

EMULATED = 4  # programs of one launch at most: enough for races between them


def multiprocessors(device: torch.device) -> int | None:
    """How many the GPU has; None for a processor, and for a GPU that is only planned for."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def multiplies_exactly() -> bool:
    """Whether products of matrices keep all bits of an f32, as PyTorch has it at first. Once the
    newer of its two ways to say so was used, the older one raises."""
    return torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
