"""Weight prepacking and constant folding of frozen weights. The first call computes them, and a
later one again if a weight was written to, moved or replaced.
Writes are detected by autograd's version counters. These miss writes through `parameter.data`,
NumPy or another library, and all writes to inference tensors: hence the option `freeze`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

Stage = Callable[[list[object]], Sequence[object]]


@dataclass(frozen=True, slots=True)
class _KnownWeights:
    """Results, and for each weight its reference, address and version (None without a counter)."""

    weights: tuple[tuple[weakref.ref[torch.Tensor], int, int | None], ...]
    results: tuple[object, ...]

    def matches(self, weights: Sequence[torch.Tensor]) -> bool:
        """A plain loop, since every call runs it."""
        for (reference, address, version), weight in zip(self.weights, weights):
            if reference() is not weight or address != weight.data_ptr():
                return False
            if version is not None and version != weight._version:
                return False
        return True


class PrepackedWeights:
    """Called with a call's arguments: gives the results that follow them in the argument list.

    `stages`: run in order, each with the arguments and the results of earlier stages. `weights`:
    the positions of the arguments that they read. `used`: the positions of the results that calls
    read; others are None. Modules that share a graph have their own results, which live as long as
    their first weight.
    """

    def __init__(
        self, stages: Sequence[Stage], weights: Collection[int], used: Collection[int]
    ) -> None:
        self._stages = tuple(stages)
        self._weights = tuple(weights)
        self._used = frozenset(used)
        self._known: Any = WeakTensorKeyDictionary()  # to _KnownWeights

    def __call__(self, arguments: Sequence[Any]) -> tuple[object, ...]:
        weights = [arguments[position] for position in self._weights]
        cached: _KnownWeights | None = self._known.get(weights[0])
        if cached is None or not cached.matches(weights):
            states = tuple((weakref.ref(x), x.data_ptr(), _version(x)) for x in weights)
            cached = self._known[weights[0]] = _KnownWeights(states, self._computed(arguments))
        return cached.results

    def _computed(self, arguments: Sequence[object]) -> tuple[object, ...]:
        """Never in inference mode, since the results serve calls outside of it too."""
        values = list(arguments)
        with torch.inference_mode(False), torch.no_grad():
            for stage in self._stages:
                values += stage(list(values))
        results = values[len(arguments) :]
        return tuple(
            result if place in self._used else None
            for place, result in enumerate(results, len(arguments))
        )


def _version(weight: torch.Tensor) -> int | None:
    return None if weight.is_inference() else weight._version
