"""In which order of its axes eager lays out what tensors of indices pick (`x[:, places]`): as
PyTorch's TensorIterator orders axes, by the strides of all operands one after the other. PyTorch's
own function that says so leaves out axes of size 1, which have strides too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hemstitch.frontend.joint import are_hinted, hints_of

aten = torch.ops.aten


def order_of_indexed(
    result: Tensor, x: Tensor, indices: Sequence[Tensor | None]
) -> list[int] | None:
    """The axes of `result`, the outermost first; None where a size is read from data."""
    tensors = [index for index in indices if index is not None]
    sizes = [result.shape, x.stride(), *(i.shape for i in tensors), *(i.stride() for i in tensors)]
    if not all(map(are_hinted, sizes)):
        return None
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    others = [axis for axis in range(x.dim()) if axis not in axes]
    before = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    spread = aten.broadcast_tensors.default(tensors)
    shape, steps = hints_of(result.shape), hints_of(x.stride(axis) for axis in others)
    operands = [[*steps[:before], *[0] * spread[0].dim(), *steps[before:]]]
    for index in spread:
        seen = index.reshape(*[1] * before, *index.shape, *[1] * (len(others) - before))
        strides = zip(hints_of(seen.shape), shape, hints_of(seen.stride()))
        operands.append([0 if size == 1 != whole else step for size, whole, step in strides])
    return _ordered(shape, operands)


def _ordered(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """`TensorIteratorBase::reorder_dimensions`. Two axes of which no operand says anything may lie
    either way, so that no key sorts them."""
    inner = [*reversed(range(len(shape)))]
    for last in range(1, len(shape)):
        place = last
        for before in reversed(range(last)):
            step = _step(shape, operands, inner[before], inner[place])
            if step < 0:
                break
            if step > 0:
                inner[before], inner[place] = inner[place], inner[before]
                place = before
    return inner[::-1]


def _step(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """Whether axis `a` lies outside (1) or inside (-1) of `b`."""
    for strides in operands:
        if strides[a] and strides[b]:
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
    return 0
