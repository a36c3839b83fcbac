"""The operators that `torchvision` asks for when it is imported, where its own library cannot be
loaded: its wheels beside a PyTorch for the CPU are for CUDA. The models here call none of them."""

from __future__ import annotations

import importlib.util

import torch

_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]


def define() -> None:
    if importlib.util.find_spec("torchvision") is None:
        return
    for name in ("nms", "qnms"):
        if not torch._C._dispatch_has_kernel(f"torchvision::{name}"):
            _LIBRARY.define(name + _ARGUMENTS)  # type: ignore[no-untyped-call]
