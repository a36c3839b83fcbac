"""What every way is asked to do: a training step of a model, or its answer to a batch. Takes names
and sizes, gives what is run, and how far two results are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.models import MORE_WORKLOADS, SINGLE_WORKLOADS, WORKLOADS, Size, Training

MODELS = {**WORKLOADS, **MORE_WORKLOADS}  # the means are of these
ANSWERING = {**MODELS, **SINGLE_WORKLOADS}
DROPOUT = 0.1
Results = Mapping[str, Sequence[Tensor]]  # "loss" and "gradients", or "output"


@dataclass(frozen=True, slots=True)
class Made:
    """A model in training gives (loss, output), else its output."""

    model: nn.Module
    arguments: dict[str, Any]
    training: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """`step` does the work once; `results` takes what it gave. `counts`: kernels and bytes, where a
    compiler can tell."""

    step: Callable[[], Any]
    results: Callable[[Any], Results]
    counts: Callable[[], dict[str, float]] = dict


class Autocast(nn.Module):
    """A model under bf16 autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **arguments: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(**arguments)


def made(
    name: str, size: Size, training: bool, dropout: float = DROPOUT, *, autocast: bool = False
) -> Made:
    """The same numbers each time. `autocast`: to bf16."""
    torch.manual_seed(0)
    workload = ANSWERING[name]
    model, batch = Training(workload, size, dropout), workload.inputs(size)
    cast = Autocast if autocast else lambda model: model
    if training:
        return Made(cast(model.train()), {"batch": batch}, training)
    inputs = {name: value for name, value in batch.items() if not name.startswith("label")}
    return Made(cast(model.model.eval()), inputs, training)


def operations(workload: Made) -> int:
    """Multiplications and additions of its products of matrices and convolutions, in a step."""
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(workload.training):
        result = workload.model(**workload.arguments)
        if workload.training:
            result[0].backward()
    return int(counter.get_total_flops())


def distance(results: Results, exact: Results) -> float:
    """The largest, of all that `results` has, relative to its norm."""
    return max(
        _norm([a - b for a, b in zip(tensors, exact[name], strict=True)]) / _norm(exact[name])
        for name, tensors in results.items()
    )


def _norm(values: Sequence[Tensor]) -> float:
    return math.hypot(*(torch.linalg.vector_norm(value.detach().double()) for value in values))
