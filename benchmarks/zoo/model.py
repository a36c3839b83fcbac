"""What each library gives: names of models, and a model of that name with its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PARAMETERS_LIMIT = 150_000_000  # compiling, not computing, is what takes the time
SECONDS_LIMIT = 4  # of attempts to build a model


class NotBuilt(Exception):
    """This library has no such model that is small enough, or PyTorch cannot run it."""


@dataclass(frozen=True, slots=True)
class Model:
    module: nn.Module
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Library:
    """`names`: of models, with the family of each. `build`: gives attempts, the smallest first."""

    package: str
    names: Callable[[], Mapping[str, str]]
    attempts: Callable[[str], Iterator[Callable[[], Model]]]


def first_that_runs(attempts: Iterator[Callable[[], Model]]) -> Model:
    """The first attempt whose forward works in eager PyTorch."""
    reasons: list[str] = []
    start = time.process_time()
    for attempt in attempts:
        if time.process_time() > start + SECONDS_LIMIT:
            break
        try:
            model = attempt()
            with torch.no_grad():
                tensors(model.module.eval()(**model.inputs))
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}"[:300])
        else:
            return model
    raise NotBuilt(reasons[-1] if reasons else "no attempt")


def sized(make: Callable[[], nn.Module]) -> nn.Module:
    """The module, if it is small enough, else `NotBuilt` before it takes memory."""
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in make().parameters())
    if count > PARAMETERS_LIMIT:
        raise NotBuilt(f"{count:,} parameters")
    torch.manual_seed(0)
    return make().float()


def tensors(result: object) -> list[Tensor]:
    """All tensors of floats in the results of a model, in their order."""
    leaves: Sequence[object] = torch.utils._pytree.tree_leaves(result)
    kept = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    if not kept:
        raise NotBuilt("no result is a tensor of floats")
    return kept
