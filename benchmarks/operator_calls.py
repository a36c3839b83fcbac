"""What a call alone takes: next to nothing is computed, with an operator's arguments and results.

Guards, wrappers and autograd ask each argument and make each result, whatever is computed. Takes an
operator; gives one with as many arguments and results, of one element each.
"""

from __future__ import annotations

import torch

from benchmarks.enlarged import Operator, Program, tensors_of

VIEW, OWN = "view", "own"


def calls_alone(operator: Operator) -> Operator:
    """Results are views of arguments, or have memory of their own; backward reads some of what
    forward had, if it does so in `operator`."""
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


def one_operation(operator: Operator) -> Program:
    """What eager cannot do with less."""
    place = [*operator.trained, True].index(True) % len(operator.trained)
    return lambda *tensors: tensors[place] * tensors[place]


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
