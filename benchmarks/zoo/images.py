"""Models of images: of each module of `timm` its smallest, and those of `torchvision`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import timm
import torch
import torchvision

from benchmarks.zoo.model import Library, Model, sized

SIZES = (64, 96, 128, 224, 256)
SMALL = (
    "atto",
    "femto",
    "pico",
    "nano",
    "test",
    "xxt",
    "xxs",
    "micro",
    "tiny",
    "_xs",
    "mini",
    "_t",
    "_s",
)
SHORT: tuple[Mapping[str, Any], ...] = (
    {"depth": 2},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {},
)


def _timm_names() -> dict[str, str]:
    return dict.fromkeys(sorted(timm.list_modules()), "timm")


def _timm_attempts(module: str) -> Iterator[Callable[[], Model]]:
    known = timm.list_models(module=module)
    ranked = sorted(known, key=lambda name: (_rank(name), len(name), name))
    for name in ranked[:2]:
        for settings in SHORT:
            for size in SIZES:
                yield partial(_timm_model, name, settings, size)


def _rank(name: str) -> int:
    return next((place for place, word in enumerate(SMALL) if word in name), len(SMALL))


def _timm_model(name: str, settings: Mapping[str, Any], size: int) -> Model:
    def make(**more: Any) -> torch.nn.Module:
        module: torch.nn.Module = timm.create_model(name, num_classes=10, **settings, **more)
        return module

    try:
        module = sized(partial(make, img_size=size))
    except TypeError:
        module = sized(make)
    return Model(module, _image(module, size))


def _image(module: torch.nn.Module, size: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    name = next(iter(inspect.signature(module.forward).parameters))
    return {name: torch.randn(2, 3, size, size)}


TIMM = Library("timm", _timm_names, _timm_attempts)

# The smallest of each architecture; detectors and quantised models return no fixed results.
TORCHVISION = (
    *("alexnet", "convnext_tiny", "deeplabv3_mobilenet_v3_large", "densenet121", "efficientnet_b0"),
    *(
        "efficientnet_v2_s",
        "fcn_resnet50",
        "googlenet",
        "inception_v3",
        "lraspp_mobilenet_v3_large",
    ),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "mc3_18", "r2plus1d_18"),
    *(
        "r3d_18",
        "raft_small",
        "regnet_x_400mf",
        "regnet_y_400mf",
        "resnet18",
        "resnext50_32x4d",
        "s3d",
    ),
    *("shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32"),
    *("mvit_v2_s", "swin3d_t", "wide_resnet50_2"),
)
VIDEOS = ("mc3_18", "r2plus1d_18", "r3d_18", "s3d", "mvit_v2_s", "swin3d_t")


def _torchvision_names() -> dict[str, str]:
    return dict.fromkeys(TORCHVISION, "torchvision")


def _torchvision_attempts(name: str) -> Iterator[Callable[[], Model]]:
    for size in SIZES:
        yield partial(_torchvision_model, name, size)


def _torchvision_model(name: str, size: int) -> Model:
    settings: dict[str, Any] = {} if name == "raft_small" else {"num_classes": 10}
    if name.startswith(("fcn", "deeplab", "lraspp")):
        settings |= {"weights_backbone": None}
    module = torchvision.models.get_model(name, **settings)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    torch.manual_seed(1)
    if name == "raft_small":
        return Model(module, {f"image{k}": torch.rand(1, 3, 128, 128) for k in (1, 2)})
    if name in VIDEOS:
        return Model(module, {"x": torch.randn(1, 3, 16, size, size)})
    return Model(module, _image(module, size))


TORCHVISION_LIBRARY = Library("torchvision", _torchvision_names, _torchvision_attempts)
