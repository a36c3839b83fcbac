"""A compiled graph that checks itself: every call also interprets the captured graph, and raises at
the first result with an element that differs by more than rounding explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hemstitch.errors import DifferenceError
from hemstitch.ir.graph import Graph, Output
from hemstitch.planning.plan import Plan
from hemstitch.runtime.executable import Executable
from hemstitch.runtime.interpreter import run
from hemstitch.runtime.returned import Result, Returned
from hemstitch.runtime.rounding_noise import Noise

TIMES = 16.0  # by which an error may exceed the noise of a few random runs
NOISE = (1.0, 1.0, 1.0, TIMES)  # of each run; the last shows how many comparisons are close
UNITS = 16.0  # in the last place, the bound where noise has no effect


class Verified:
    """Stands in for an `Executable`; calls cost a multiple of eager's time and memory."""

    def __init__(
        self,
        executable: Executable,
        graph: Graph,
        plan: Plan,
        returns: Sequence[Returned],
        constants: Sequence[torch.Tensor],
        device: torch.device,
    ) -> None:
        self._boxed_call = True
        self._executable = executable
        self._graph = graph
        self._plan = plan
        self._returns = returns
        self._constants = constants
        self._device = device

    def __call__(self, arguments: list[object]) -> tuple[object, ...]:
        originals = list(arguments)
        expected = self._reference(originals, None)
        noises = (Noise.of(self._graph, seed, times) for seed, times in enumerate(NOISE))
        perturbed = [self._reference(originals, noise) for noise in noises]
        results = self._executable(arguments)
        for number, (output, value) in enumerate(zip(self._graph.outputs, expected)):
            result = self._result(number, output, results, originals)
            if isinstance(result, torch.Tensor):
                self._compare(number, result, value, [values[number] for values in perturbed])
        return results

    def _reference(self, arguments: Sequence[object], noise: Noise | None) -> list[torch.Tensor]:
        copies: list[Any] = [_copy(argument) for argument in (*arguments, *self._constants)]
        gpus = [] if self._device.type == "cpu" else [self._device]
        rules = None if noise is None else noise.rules()
        kind = gpus[0].type if gpus else "cuda"
        with torch.random.fork_rng(gpus, device_type=kind):  # the same seeds for all
            return run(self._graph, copies, device=self._device, rules=rules)

    def _result(
        self, number: int, output: Output, results: Sequence[object], arguments: Sequence[object]
    ) -> object:
        if output.mutates is not None:
            return arguments[output.mutates.attr.position]  # type: ignore[union-attr]
        places = [k for k, r in enumerate(self._returns) if r == Result(number)]
        return results[places[0]] if places else None

    def _compare(
        self,
        number: int,
        result: torch.Tensor,
        expected: torch.Tensor,
        perturbed: Sequence[torch.Tensor],
    ) -> None:
        difference = disagreement(result, expected, perturbed)
        if difference is None:
            return
        tensor = self._plan.outputs[number].tensor
        sources = [s.stitched.kernel.name for s in self._plan.kernels if tensor in s.writes]
        origin = self._graph.origins.get(self._graph.outputs[number].value)
        raise DifferenceError(
            f"result {number} of {', '.join(sources) or 'a library call'} ({origin or '?'}) "
            f"differs from eager: {difference}"
        )


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The element with the largest excess over its bound, of `count` elements with an excess."""

    place: tuple[int, ...]
    result: object
    expected: object
    bound: float
    count: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.size} elements, the worst at {self.place}: {self.result} in "
            f"place of {self.expected}, and rounding explains {self.bound:.1e}"
        )


def agree(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal up to a few roundings of each element."""
    return disagreement(result, expected) is None


def disagreement(
    result: torch.Tensor, expected: torch.Tensor, perturbed: Sequence[torch.Tensor] = ()
) -> Disagreement | str | None:
    """The worst element if two tensors differ by more than rounding. NaN equals NaN, infinities
    must be equal.
    `perturbed`: the expected tensor with noise; in the last one the noise is `TIMES` as large.
    """
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"{result.dtype} {[*result.shape]} in place of {expected.dtype} {[*expected.shape]}"
    if expected.is_complex():
        real_tensors = [
            torch.view_as_real(tensor.resolve_conj()) for tensor in (result, expected, *perturbed)
        ]
        return disagreement(real_tensors[0], real_tensors[1], real_tensors[2:])
    if not expected.dtype.is_floating_point:
        return _integer_disagreement(result, expected, perturbed)
    bound = bounds(expected, perturbed[:-1])
    ours, theirs = result.double(), expected.double()
    excess = ((ours - theirs).abs() / bound.clamp_min(math.ulp(0.0))).nan_to_num(math.inf)
    is_same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    excess = torch.where(is_same | bound.isinf(), 0.0, excess)
    return _worst(result, expected, bound, excess, excess > 1)


def bounds(expected: torch.Tensor, perturbed: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bound of each element: its own spread under noise, plus that of the other elements, as an
    absolute value or as a share of the element, whichever is less."""
    value, info = expected.double(), torch.finfo(expected.dtype)
    spread = torch.zeros_like(value)
    for tensor in perturbed:
        is_same = (tensor == expected) | (tensor.isnan() & expected.isnan())
        distance = (tensor.double() - value).abs().nan_to_num(math.inf)
        spread = spread.maximum(torch.where(is_same, 0.0, distance))
    is_usual, size = spread.isfinite(), value.abs().nan_to_num(0.0, 0.0, 0.0)
    absolute = float(spread[is_usual].square().mean().sqrt()) if bool(is_usual.any()) else 0.0
    shares = (spread / size)[is_usual & (size > 0)]
    share = float(shares.max()) if shares.numel() else 0.0
    typical_spread = (share * size).clamp_max(absolute)
    return (
        TIMES * (spread + typical_spread)
        + UNITS * info.eps * size
        + info.smallest_normal * info.eps
    )


def _integer_disagreement(
    result: torch.Tensor, expected: torch.Tensor, perturbed: Sequence[torch.Tensor]
) -> Disagreement | None:
    """Integers and conditions are equal, except for as many as differ under noise."""
    flips = [tensor != expected for tensor in perturbed]
    differs = result != expected
    may_differ = max((int(flip.sum()) for flip in flips), default=0)
    if int(differs.sum()) <= may_differ:
        return None
    for flip in flips:
        differs = differs & ~flip
    bound = torch.zeros(expected.shape, dtype=torch.float64)
    return _worst(result, expected, bound, differs.double(), differs)


def _worst(
    result: torch.Tensor,
    expected: torch.Tensor,
    bound: torch.Tensor,
    excess: torch.Tensor,
    differs: torch.Tensor,
) -> Disagreement | None:
    count = int(differs.sum())
    if not count:
        return None
    flat = int(excess.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), expected.shape))
    ours, theirs, explained = (t.reshape(-1)[flat].item() for t in (result, expected, bound))
    return Disagreement(place, ours, theirs, float(explained), count, expected.numel())


def difference(result: torch.Tensor, expected: torch.Tensor) -> float:
    """|result - expected| / |expected|, as norms, in float64."""
    error = (result.double() - expected.double()).norm()
    return float(error / expected.double().norm().clamp_min(1e-6))


def _copy(argument: object) -> object:
    return argument.clone() if isinstance(argument, torch.Tensor) else argument
