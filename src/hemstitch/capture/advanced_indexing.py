"""In which order of its axes eager lays out what tensors of indices pick (`x[:, places]`): as
PyTorch's TensorIterator orders axes. PyTorch's own function that says so leaves out axes of size 1,
which have strides too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hemstitch.capture.tensor_iterator import StridedLayout, axis_order
from hemstitch.capture.traced_nodes import are_hinted, hints_of

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
    operands = [StridedLayout(shape, [*steps[:before], *[0] * spread[0].dim(), *steps[before:]])]
    for index in spread:
        seen = index.reshape(*[1] * before, *index.shape, *[1] * (len(others) - before))
        operands.append(StridedLayout.of(seen).spread(shape))
    return axis_order(operands)
