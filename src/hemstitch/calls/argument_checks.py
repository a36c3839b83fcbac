"""Whether a call's arguments are what a graph was compiled for. Dynamo's guards ask that before
each call, unless the program has left some out; they see no gradient, and nothing that hooks have
put in place of what was saved for backward."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.hooks import Hooks
from torch.fx import GraphModule

from hemstitch.capture.traced_nodes import value_of
from hemstitch.errors import UnsupportedError


def is_guarded() -> bool:
    """Whether Dynamo, which is compiling now, will ask all of it. Its hooks are where it is told to
    leave guards out, and no way leads there but its frame."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "torch._dynamo.convert_frame":
            hooks = frame.f_locals.get("hooks")
            if isinstance(hooks, Hooks):
                return hooks.guard_filter_fn is None
    return False


def arguments_of_graph(traced: GraphModule) -> Sequence[object]:
    """As they were traced."""
    return [value_of(node) for node in traced.graph.find_nodes(op="placeholder")]


def check_arguments(
    expected: Sequence[object], arguments: Sequence[Any], optional: Collection[int] = ()
) -> None:
    """Raises UnsupportedError for a tensor of another kind, type, size or layout. Those at the
    places `optional` may be None."""
    sizes: dict[object, int] = {}
    for place, (value, argument) in enumerate(zip(expected, arguments, strict=True)):
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            continue
        if argument is None and place in optional:
            continue
        if not _is_like(value, argument, sizes):
            raise UnsupportedError(
                f"argument {place} of a compiled graph is not as it was when compiled",
                hint="results are right, but the call ran without kernels",
            )


def is_in_memory(tensor: Tensor) -> bool:
    """Whether a kernel can read its elements where they are said to be: not those of batches inside
    `vmap`, of zeros that take no memory, of negatives that are still to be computed."""
    try:
        return (tensor.data_ptr() != 0 or tensor.numel() == 0) and not tensor.is_neg()
    except RuntimeError:
        return False


def _is_like(value: Tensor, argument: object, sizes: dict[object, int]) -> bool:
    """`sizes`: the values of symbolic sizes in this call."""
    if not isinstance(argument, Tensor) or argument.layout is not torch.strided:
        return False
    if _kinds(value) != _kinds(argument) or not (value.is_neg() or is_in_memory(argument)):
        return False
    pairs = [*zip(value.shape, argument.shape)]
    if argument.numel():
        steps = zip(argument.shape, value.stride(), argument.stride())
        pairs += [(step, actual) for size, step, actual in steps if size != 1]
    return all(actual == _size(size, actual, sizes) for size, actual in pairs)


def _kinds(x: Tensor) -> tuple[object, ...]:
    return x.dtype, x.device.type, x.dim(), x.is_neg(), x.is_conj()


def _size(expected: int | torch.SymInt, actual: int, sizes: dict[object, int]) -> int:
    return (
        sizes.setdefault(expected.node.expr, actual)
        if isinstance(expected, torch.SymInt)
        else expected
    )
