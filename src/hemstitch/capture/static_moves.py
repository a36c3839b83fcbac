"""What moves elements to places known from the sizes alone, as slices, flips, pads and windows.

PyTorch's decompositions compute an index for each element and read, or add up, at it. A slice says
the same without an index tensor, and its gradient is a pad.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Decomposition = Callable[..., Any]
MAX_ADDED = 8  # slices that are added one by one; more are a reduction


def _all_known(*numbers: object) -> bool:
    return all(type(number) is int for number in numbers)


def _pad(x: Tensor, axis: int, before: int, behind: int) -> Tensor:
    """With zeros along one axis; what is negative is cut off."""
    if before == behind == 0:
        return x
    return F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [before, behind])


def _by_axes(x: Tensor, padding: Sequence[int], of_axis: Decomposition) -> Tensor:
    """`padding`: as `torch.nn.functional.pad` takes it, the last axis first."""
    for number, axis in enumerate(range(x.dim() - 1, x.dim() - 1 - len(padding) // 2, -1)):
        before, behind = padding[2 * number : 2 * number + 2]
        if before or behind:
            x = of_axis(x, axis, before, behind)
    return x


# --- rolling


def _roll(usual: Decomposition, x: Tensor, shifts: Any, dims: Any = ()) -> Any:
    shifts, dims = (v if isinstance(v, (list, tuple)) else [v] for v in (shifts, dims))
    is_ours = len(shifts) == len(dims) > 0 and _all_known(*x.shape, *shifts) and x.numel()
    if not is_ours:
        return usual(x, shifts, dims)
    total = x.clone()
    for shift, axis in zip(shifts, dims):
        size = x.shape[axis]
        moved = shift % size
        if moved:
            parts = total.narrow(axis, size - moved, moved), total.narrow(axis, 0, size - moved)
            total = torch.cat(parts, axis)
    return total


# --- padding by what is there


def _mirrored(x: Tensor, axis: int, before: int, behind: int) -> Tensor:
    size = x.shape[axis]
    parts = [_pad(x, axis, min(before, 0), min(behind, 0))]
    if before > 0:
        parts.insert(0, x.narrow(axis, 1, before).flip(axis))
    if behind > 0:
        parts.append(x.narrow(axis, size - 1 - behind, behind).flip(axis))
    return torch.cat(parts, axis)


def _mirrored_gradient(gradient: Tensor, axis: int, before: int, behind: int) -> Tensor:
    size = gradient.shape[axis] - before - behind
    total = _pad(gradient, axis, -before, -behind)
    if before > 0:
        part = gradient.narrow(axis, 0, before).flip(axis)
        total = total + _pad(part, axis, 1, size - 1 - before)
    if behind > 0:
        part = gradient.narrow(axis, before + size, behind).flip(axis)
        total = total + _pad(part, axis, size - 1 - behind, 1)
    return total


def _repeated(x: Tensor, axis: int, before: int, behind: int) -> Tensor:
    size = x.shape[axis]
    shape = list(x.shape)
    parts = [_pad(x, axis, min(before, 0), min(behind, 0))]
    if before > 0:
        shape[axis] = before
        parts.insert(0, x.narrow(axis, 0, 1).expand(shape))
    if behind > 0:
        shape[axis] = behind
        parts.append(x.narrow(axis, size - 1, 1).expand(shape))
    return torch.cat(parts, axis)


def _repeated_gradient(gradient: Tensor, axis: int, before: int, behind: int) -> Tensor:
    size = gradient.shape[axis] - before - behind
    total = _pad(gradient, axis, -before, -behind)
    if before > 0:
        total = total + _pad(_added(gradient, axis, 0, before), axis, 0, size - 1)
    if behind > 0:
        total = total + _pad(_added(gradient, axis, before + size, behind), axis, size - 1, 0)
    return total


def _added(x: Tensor, axis: int, first: int, count: int) -> Tensor:
    if count > MAX_ADDED:
        return x.narrow(axis, first, count).sum(axis, keepdim=True)
    total = x.narrow(axis, first, 1)
    for place in range(first + 1, first + count):
        total = total + x.narrow(axis, place, 1)
    return total


def _padded(of_axis: Decomposition, usual: Decomposition, x: Tensor, padding: Any) -> Any:
    if not _all_known(*padding) or not _all_known(*x.shape):
        return usual(x, padding)
    return _by_axes(x, padding, of_axis).contiguous(memory_format=_format(x))


def _padded_gradient(
    of_axis: Decomposition, usual: Decomposition, gradient: Tensor, x: Tensor, padding: Any
) -> Any:
    if not _all_known(*padding) or not _all_known(*x.shape):
        return usual(gradient, x, padding)
    # Eager adds it to zeros.
    return (_by_axes(gradient, padding, of_axis) + 0.0).contiguous(memory_format=_format(x))


def _format(x: Tensor) -> torch.memory_format:
    return torch._prims_common.suggest_memory_format(x)


# --- windows


def _im2col(
    usual: Decomposition, x: Tensor, size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    """Windows of an image as columns: [N, C * window, places]."""
    numbers = (*x.shape, *size, *dilation, *padding, *stride)
    if not _all_known(*numbers) or x.dim() != 4 or not x.numel():
        return usual(x, size, dilation, padding, stride)
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for axis in (0, 1):
        x = x.unfold(2 + axis, (size[axis] - 1) * dilation[axis] + 1, stride[axis])
    windows = x[..., :: dilation[0], :: dilation[1]]
    columns = windows.permute(0, 1, 4, 5, 2, 3)
    return columns.reshape(x.shape[0], x.shape[1] * size[0] * size[1], -1)


def _col2im(
    usual: Decomposition,
    x: Tensor,
    image: Any,
    size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Any:
    """The transpose: each element of the image adds up the windows that it is in."""
    numbers = (*x.shape, *image, *size, *dilation, *padding, *stride)
    window = size[0] * size[1]
    if not _all_known(*numbers) or x.dim() != 3 or not x.numel() or window > MAX_ADDED**2:
        return usual(x, image, size, dilation, padding, stride)
    places = [
        1 + (image[a] + 2 * padding[a] - dilation[a] * (size[a] - 1) - 1) // stride[a]
        for a in (0, 1)
    ]
    parts = x.reshape(x.shape[0], x.shape[1] // window, *size, *places)
    total: Tensor | None = None
    for offsets in product(range(size[0]), range(size[1])):
        part = parts[:, :, offsets[0], offsets[1]]
        for a in (0, 1):
            part = _spread(part, 2 + a, stride[a])
            before = offsets[a] * dilation[a] - padding[a]
            part = _pad(part, 2 + a, before, image[a] - before - part.shape[2 + a])
        total = part if total is None else total + part
    assert total is not None
    return total + 0.0  # eager adds it to zeros


def _unfold_backward(
    usual: Decomposition, gradient: Tensor, shape: Any, dimension: int, size: int, step: int
) -> Any:
    """Windows in pieces as long as a step: those at one place in their windows lie side by side."""
    axis = dimension % max(len(shape), 1)
    if not _all_known(*shape, *gradient.shape, size, step) or -(-size // step) > MAX_ADDED:
        return usual(gradient, shape, dimension, size, step)
    windows = [*shape, size]
    windows[axis] = (shape[axis] - size) // step + 1 if shape else 0
    if not gradient.numel() or [*gradient.shape] != windows:
        return usual(gradient, shape, dimension, size, step)
    parts = gradient.movedim(-1, axis + 1)
    total: Tensor | None = None
    for before in reversed(range(0, size, step)):  # eager adds windows in their order
        part = parts.narrow(axis + 1, before, min(step, size - before))
        part = _pad(part, axis + 1, 0, step - part.shape[axis + 1]).flatten(axis, axis + 1)
        part = _pad(part, axis, before, shape[axis] - before - part.shape[axis])
        total = part if total is None else total + part
    return total if total is None or size <= step else total + 0.0  # eager adds it to zeros


def _spread(x: Tensor, axis: int, step: int) -> Tensor:
    """With `step` - 1 zeros between neighbours."""
    if step == 1:
        return x
    spread = _pad(x.unsqueeze(axis + 1), axis + 1, 0, step - 1).flatten(axis, axis + 1)
    return spread.narrow(axis, 0, spread.shape[axis] - (step - 1))


def _kept(*_: Any) -> Any:
    return NotImplemented


def moved_by_views(table: dict[Any, Decomposition]) -> dict[Any, Decomposition]:
    """Decompositions to take the place of those in `table`, which they call for what they do not
    do: symbolic sizes above all."""
    ours: dict[str, Decomposition] = {"roll": _roll, "im2col": _im2col, "col2im": _col2im}
    ours["unfold_backward"] = _unfold_backward
    for rank in (1, 2, 3):
        for name, forward, backward in (
            ("reflection", _mirrored, _mirrored_gradient),
            ("replication", _repeated, _repeated_gradient),
        ):
            ours[f"{name}_pad{rank}d"] = partial(_padded, forward)
            ours[f"{name}_pad{rank}d_backward"] = partial(_padded_gradient, backward)
    ops = {name: getattr(torch.ops.aten, name).default for name in ours}
    return {op: partial(ours[name], table.get(op, _kept)) for name, op in ops.items()}
