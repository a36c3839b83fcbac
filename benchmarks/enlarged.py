"""Samples of OpInfo, repeated until they have a realistic size. Takes an OpInfo and a number of
elements; gives a plain function of tensors, as a program would call the operator, and the tensors.

Which axes of which tensors may grow, no OpInfo says: ways are tried in turn, at first with few
elements, until eager takes one, in time and without results that are much larger."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Program = Callable[..., Any]
Way = Callable[[list[torch.Tensor], int], list[torch.Tensor]]
LIMIT_SECONDS = 0.1  # of one call of eager
IMAGES = ("conv", "pool", "norm", "pad", "fold", "pixel", "shuffle")
SCALED = ("interpolate", "upsample")  # the size of the result is fixed: more images, none larger
LARGER = 16  # results may have so many times the elements
STEPS = (4096, 512, 64, 8, 1)  # so many times fewer elements are tried first
FEW = 1_000  # elements of samples, at most


@dataclass(frozen=True, slots=True)
class Operator:
    program: Program
    tensors: list[torch.Tensor]
    trained: tuple[bool, ...]  # which of them may require gradients


def enlarged(info: Any, size: int) -> Operator:
    samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))
    sample = max(samples, key=lambda s: max((t.numel() for t in _tensors(s)), default=0))
    tensors = _tensors(sample)
    if not sum(tensor.numel() for tensor in tensors):
        raise ValueError("samples are empty")
    program = _program(info.op, sample)
    ways: tuple[Way, ...] = (_evenly, _first_axes, _first_of_input, _last_axes)
    if any(word in info.name for word in SCALED):
        ways = (_first_axes,)
    if any(word in info.name for word in IMAGES):
        ways = (_space, *ways)
    failure = None
    for way, shuffle in product(ways, (_shuffled, _as_they_are)):
        try:
            for step in STEPS:
                large = shuffle(way([t.detach() for t in tensors], max(1, size // step)))
                _try(program, large, max(size // step, FEW))
        except Exception as error:
            failure = failure or error
        else:
            return Operator(program, large, tuple(tensor.requires_grad for tensor in tensors))
    raise failure or ValueError("no way to enlarge")


def _try(program: Program, tensors: list[torch.Tensor], size: int) -> None:
    start = time.thread_time()
    results = tensors_of(program(*tensors))
    if time.thread_time() - start > LIMIT_SECONDS:
        raise ValueError(f"eager takes longer than {LIMIT_SECONDS} s")
    if sum(result.numel() for result in results) > LARGER * size:
        raise ValueError("results are much larger than arguments")


def _evenly(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    """All axes of all tensors, by one factor."""
    rank = max(tensor.dim() for tensor in tensors)
    times = max(1, round((size / _count(tensors)) ** (1 / max(rank, 1))))
    return [t.repeat((times,) * t.dim()) for t in tensors]


def _first_axes(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    times = max(1, size // _count(tensors))
    return [t.repeat(times, *(1,) * (t.dim() - 1)) if t.dim() else t for t in tensors]


def _last_axes(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    times = max(1, size // _count(tensors))
    return [t.repeat(*(1,) * (t.dim() - 1), times) if t.dim() else t for t in tensors]


def _first_of_input(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    first, *others = tensors
    return [*_first_axes([first], size), *others]


def _space(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    """The axes of the first tensor behind those of batch and channels, as of images."""
    first, *others = tensors
    axes = first.dim() - 2
    if axes < 1:
        raise ValueError("the first tensor has no axes of space")
    times = max(1, round((size / first.numel()) ** (1 / axes)))
    return [first.repeat(1, 1, *(times,) * axes), *others]


def _shuffled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What repeats is easy to sort. Matrices of a kind are none any more; then they stay."""
    order = torch.Generator().manual_seed(0)
    return [
        t.flatten()[torch.randperm(t.numel(), generator=order)].view(t.shape)
        if t.is_floating_point()
        else t
        for t in tensors
    ]


def _as_they_are(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors


def _count(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _tensors(sample: Any) -> list[torch.Tensor]:
    return tensors_of((sample.input, sample.args, sample.kwargs))


def _program(operator: Any, sample: Any) -> Program:
    """`lambda t0, t1: operator(t0, 3, other=t1)`, so that a call's guards are those of such a line
    in a program."""
    names: dict[str, Any] = {"operator": operator}
    parameters: list[str] = []

    def source(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            parameters.append(f"t{len(parameters)}")
            return parameters[-1]
        if type(value) in (list, tuple):
            inner = "".join(f"{source(item)}, " for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        names[f"constant{len(names)}"] = value
        return list(names)[-1]

    call = [source(sample.input), *map(source, sample.args)]
    call += [f"{name}={source(value)}" for name, value in sample.kwargs.items()]
    line = f"lambda {', '.join(parameters)}: operator({', '.join(call)})"
    return eval(line, names)  # type: ignore[no-any-return]


def tensors_of(results: Any) -> list[torch.Tensor]:
    return [result for result in tree_leaves(results) if isinstance(result, torch.Tensor)]
