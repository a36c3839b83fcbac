"""What frozen weights alone decide: computed by the first call, and again by one that finds that a
weight was written to, moved or replaced.

A write is seen by the version that PyTorch counts for autograd. It counts none of those through
`parameter.data`, NumPy or another library, and none for tensors that were made in inference mode:
hence a program has to say that its weights are frozen.
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
    """Of each weight itself, its address and its version as they were, None where nobody counts."""

    weights: tuple[tuple[weakref.ref[torch.Tensor], int, int | None], ...]
    results: tuple[object, ...]

    def is_of(self, weights: Sequence[torch.Tensor]) -> bool:
        """One loop: this is a part of each call."""
        for (known, address, version), weight in zip(self.weights, weights):
            if known() is not weight or address != weight.data_ptr():
                return False
            if version is not None and version != weight._version:
                return False
        return True


class Once:
    """Call with a call's arguments: gives what stands behind them.

    `stages`: one after the other, each called with the arguments and what those before it gave.
    `weights`: positions of the arguments that these read. `kept`: of what they give, the positions
    that calls read; elsewhere is None. Modules that share a graph have results each, for as long as
    their first weight lives.
    """

    def __init__(
        self, stages: Sequence[Stage], weights: Collection[int], kept: Collection[int]
    ) -> None:
        self._stages = tuple(stages)
        self._weights = tuple(weights)
        self._kept = frozenset(kept)
        self._known: Any = WeakTensorKeyDictionary()  # of _Known

    def __call__(self, arguments: Sequence[Any]) -> tuple[object, ...]:
        weights = [arguments[position] for position in self._weights]
        known: _KnownWeights | None = self._known.get(weights[0])
        if known is None or not known.is_of(weights):
            states = tuple((weakref.ref(x), x.data_ptr(), _version(x)) for x in weights)
            known = self._known[weights[0]] = _KnownWeights(states, self._computed(arguments))
        return known.results

    def _computed(self, arguments: Sequence[object]) -> tuple[object, ...]:
        """Of calls in inference mode too, the results serve others."""
        given = list(arguments)
        with torch.inference_mode(False), torch.no_grad():
            for stage in self._stages:
                given += stage(list(given))
        results = given[len(arguments) :]
        return tuple(
            result if place in self._kept else None
            for place, result in enumerate(results, len(arguments))
        )


def _version(weight: torch.Tensor) -> int | None:
    return None if weight.is_inference() else weight._version
