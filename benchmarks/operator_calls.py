"""What a call alone takes: next to nothing is computed, with an operator's arguments and results.

Guards, wrappers and autograd ask each argument and make each result, whatever is computed. Takes an
operator; gives its signature, and an operator of the same signature on tensors of one element.
"""

from __future__ import annotations

from collections import Counter

import torch

from benchmarks.enlarged import Operator, tensors_of

VIEW, OWN = "view", "own"


def signature(operator: Operator) -> str:
    """`3 f32, 2 trained: 1 own, 1 saved`: results are views of arguments, or have memory of their
    own; backward reads some of what forward had."""
    kinds = Counter(_kind(tensor) for tensor in operator.tensors)
    results = Counter(_results(operator))
    arguments = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    made = ", ".join(f"{count} {kind}" for kind, count in sorted(results.items()))
    saved = ", some saved" if _saves(operator) else ""
    return f"{arguments}, {sum(operator.trained)} trained: {made}{saved}"


def calls_alone(operator: Operator) -> Operator:
    results = _results(operator)
    views, own, saves = results.count(VIEW), results.count(OWN), _saves(operator)

    def program(*tensors: torch.Tensor) -> list[torch.Tensor]:
        """As few of eager's operations as can be: they take time of their own."""
        places = range(max(len(tensors), len(results)))
        turns = [tensors[place % len(tensors)] for place in places]
        first = [tensor.view(1, 1) for tensor in turns[:views]]
        middle = [tensor + tensor for tensor in turns[views : len(results) - 1]]
        return [*first, *middle, *([_joined(turns[len(results) - 1 :], saves)] if own else [])]

    tensors = [torch.ones(1, dtype=tensor.dtype) for tensor in operator.tensors]
    return Operator(program, tensors, operator.trained)


def _joined(tensors: list[torch.Tensor], saves: bool) -> torch.Tensor:
    *others, last = tensors
    if not saves:
        return torch.cat(tensors)
    return torch.cat([*others, last * last]) if len(others) > 1 else last * [last, *others][-1]


def _saves(operator: Operator) -> bool:
    saved: list[torch.Tensor] = []

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    leaves = [t.detach().requires_grad_(g) for t, g in zip(operator.tensors, operator.trained)]
    with torch.autograd.graph.saved_tensors_hooks(kept, kept):
        operator.program(*leaves)
    return bool(saved)


def _results(operator: Operator) -> list[str]:
    with torch.no_grad():
        results = tensors_of(operator.program(*operator.tensors))
    arguments = set(map(_memory, operator.tensors))
    return [VIEW if _memory(result) in arguments else OWN for result in results]


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else None


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
