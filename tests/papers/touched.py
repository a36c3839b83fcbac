"""What each task of a kernel reads, and what it would have to: an oracle for the propagation of
indices, by derivatives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

import hemstitch.kernel_ir.interpreter as interpreter
from hemstitch.kernel_ir.nodes import Role
from tests.papers.harness import Planned


def touched(
    found: Planned, arguments: Sequence[torch.Tensor]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each task the elements of inputs that it loads, and of results that it stores."""
    loaded: dict[int, set[int]] = defaultdict(set)
    stored: dict[int, set[int]] = defaultdict(set)
    note = interpreter._Launch.record_access

    def noting(self, buffer, place, owner, writes):
        task = owner % self.threads
        if buffer.role is Role.INPUT:
            loaded[task].update(np.ravel(place).tolist())
        if buffer.role is Role.OUTPUT and writes:
            stored[task].update(np.ravel(place).tolist())
        note(self, buffer, place, owner, writes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter._Launch, "record_access", noting)
        found.run(arguments)
    return loaded, stored


def is_read_exactly(
    found: Planned, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> bool:
    """One kernel of one phase, in which a task loads an element just if a result that it stores
    depends on it."""
    loaded, stored = touched(found, [x])
    jacobian = torch.autograd.functional.jacobian(function, x.double())
    depends = (jacobian.reshape(-1, x.numel()) != 0).numpy()
    if len(found.kernel.phases) > 1:  # partial results: together all, and nothing twice
        every = [element for elements in loaded.values() for element in elements]
        return sorted(every) == list(range(x.numel()))
    result = function(x)
    axes = (np.arange(size) * step for size, step in zip(result.shape, result.stride()))
    places = sum(np.ix_(*axes)).ravel()  # of its elements in memory
    needed = {
        task: set(np.nonzero(depends[np.isin(places, sorted(kept))].any(0))[0].tolist())
        for task, kept in stored.items()
    }
    return needed == {t: elements for t, elements in loaded.items() if elements}
