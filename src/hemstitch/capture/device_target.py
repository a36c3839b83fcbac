"""Which device the kernels of a graph run on, and what is done with tensors on another one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from hemstitch.errors import UnsupportedError
from hemstitch.gpu_vendors import VENDORS
from hemstitch.options import Options

CPU = torch.device("cpu")
KINDS = ("cpu", *VENDORS)  # devices that kernels are made for


def traced_tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """What a node gives, as far as these are tensors."""
    traced = node.meta.get("val")
    parts = traced if isinstance(traced, (list, tuple)) else (traced,)
    return (part for part in parts if isinstance(part, torch.Tensor))


def device_of(gm: torch.fx.GraphModule) -> torch.device:
    """The first GPU that a tensor is on; the processor where there is none. What the processor has
    to do beside a GPU is left to the library."""
    devices = (tensor.device for node in gm.graph.nodes for tensor in traced_tensors(node))
    return next((device for device in devices if device.type in VENDORS), CPU)


def check_device(tensor: torch.Tensor, device: torch.device) -> None:
    """Kernels of one graph run on one device; `device` is it."""
    if tensor.device.type not in KINDS:
        raise UnsupportedError(
            f"a tensor is on the device {tensor.device}, and kernels are made for "
            f"{' and '.join(KINDS)} only",
            hint="move the model and its inputs there, or use another backend for this device",
        )
    if tensor.device not in (CPU, device):
        raise UnsupportedError(
            f"one graph has tensors on {device} and on {tensor.device}",
            hint="compile what runs on each device by itself: torch.compile on the modules of one",
        )


def is_number_elsewhere(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether torch takes it for a number: one element, on the processor, beside a GPU."""
    return tensor.dim() == 0 and tensor.device == CPU != device


def target_of(device: torch.device, options: Options) -> str:
    """What kernels are made for: "cpu", a GPU vendor's device type, or "interpret"."""
    wanted = {"auto": device.type, "interpret": "cpu"}.get(options.target, options.target)
    if wanted != device.type:
        raise UnsupportedError(
            f'the option "target" is {options.target!r}, and this graph is on {device}',
            hint=f'move the program to {wanted}, or leave "target" out: it then follows the device',
        )
    return device.type if options.target == "auto" else options.target
