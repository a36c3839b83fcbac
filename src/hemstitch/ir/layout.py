"""How the elements of a tensor lie in memory, as its strides say: side by side, with gaps between
them, or one under several indices."""

from __future__ import annotations

from collections.abc import Mapping

from hemstitch.ir.dims import Dim, evaluate, product, symbols
from hemstitch.ir.types import contiguous_strides


def is_dense(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Whether elements lie side by side, in any order of the axes."""
    left = [(size, step) for size, step in zip(shape, strides) if size != 1]
    extent: Dim = 1
    while left:
        inner = next((axis for axis in left if axis[1] == extent), None)
        if inner is None:
            return False
        left.remove(inner)
        extent = extent * inner[0]
    return True


def repeats(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Whether one element is under all indices of an axis."""
    return any(size != 1 and step == 0 for size, step in zip(shape, strides))


def overlaps(
    shape: tuple[Dim, ...], strides: tuple[Dim, ...], hints: Mapping[str, int]
) -> bool | None:
    """Whether one element may be under several indices, at the example sizes. None: these do not
    tell."""
    if not all(symbols(size) <= hints.keys() for size in (*shape, *strides)):
        return None
    pairs = [(evaluate(step, hints), evaluate(size, hints)) for size, step in zip(shape, strides)]
    if any(size == 0 for _, size in pairs):
        return False
    last = 0  # of the inner axes
    for step, size in sorted(pairs):
        if size != 1 and step <= last:
            return True
        last += (size - 1) * step
    return False


def without_gaps(
    shape: tuple[Dim, ...], strides: tuple[Dim, ...], hints: Mapping[str, int]
) -> tuple[Dim, ...]:
    """Strides of a dense tensor whose axes are in the order that they have at the example sizes;
    contiguous where one element is under all indices of an axis."""
    if is_dense(shape, strides):
        return strides
    is_known = all(symbols(step) <= hints.keys() for step in strides)
    steps = [evaluate(step, hints) for step in strides] if is_known else []
    if product(shape) == 0 or not steps or min(steps) == 0:
        return contiguous_strides(shape)
    closed: dict[int, Dim] = {}
    extent: Dim = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (steps[axis], -axis)):
        closed[axis] = extent
        extent = extent * shape[axis]
    return tuple(closed[axis] for axis in range(len(shape)))
