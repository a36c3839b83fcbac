"""View indices: maps an index of a view's result to an index of its operand, and views to strides.

Views perform no work in a kernel; they only transform the index at which their operand is read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise

from hemstitch.ir.dims import Dim, product, total
from hemstitch.ir.graph import Node, Op, Range, Windows
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel_ir.index import Index, divide, linear
from hemstitch.stitching.refusal import Refused

Indices = tuple[Index, ...]

# Views with one operand and one source element for every element of the result.
INDEX_VIEWS = frozenset({Op.BROADCAST, Op.RESHAPE, Op.PERMUTE, Op.SLICE, Op.UNFOLD})
INVERTIBLE = frozenset({Op.RESHAPE, Op.PERMUTE})  # bijective views


def source_indices(view: Node, indices: Indices) -> Indices:
    """The indices into `view.inputs[0]` of the element that `view` has at `indices`."""
    (source,) = view.inputs
    match view.op:
        case Op.BROADCAST:
            return tuple(
                Index() if size == 1 else index for size, index in zip(source.shape, indices)
            )
        case Op.PERMUTE:
            order = view.attr
            assert isinstance(order, tuple)
            index_of = dict(zip(order, indices))
            return tuple(index_of[axis] for axis in range(len(order)))
        case Op.SLICE:
            assert isinstance(view.attr, tuple)
            return tuple(
                _sliced(part, index) for part, index in zip(view.attr, indices) if _is_range(part)
            )
        case Op.UNFOLD:
            windows = view.attr
            assert isinstance(windows, Windows)
            *outer, inside = indices
            position = outer[windows.axis].scaled(windows.step) + inside
            return (*outer[: windows.axis], position, *outer[windows.axis + 1 :])
        case _:
            assert view.op is Op.RESHAPE, view.op
            return reshaped(view.shape, source.shape, indices)


def _is_range(part: object) -> bool:
    return isinstance(part, Range)


def _sliced(part: object, index: Index) -> Index:
    assert isinstance(part, Range)
    return index.scaled(part.step).shifted(part.start)


def reshaped(shape: tuple[Dim, ...], source: tuple[Dim, ...], indices: Indices) -> Indices:
    """Indices for `shape` as indices for `source`. Raises Refused where an axis would be split
    unevenly."""
    if product(shape) == 0:
        return (Index(),) * len(source)
    rest = linear(indices, contiguous_strides(shape))
    result: list[Index] = []
    for size, step in zip(source, contiguous_strides(source)):
        if size == 1:
            result.append(Index())
            continue
        parts = divide(rest, step)
        if parts is None:
            raise Refused("reshape", f"{_text(source)} to {_text(shape)} cuts an axis unevenly")
        whole, rest = parts
        result.append(whole)
    return tuple(result)


def _text(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def below_views(node: Node, memory: Container[Node]) -> Node:
    """The value below the views of `node`, down to the first one in `memory`."""
    while node.op in INDEX_VIEWS and node not in memory:
        (node,) = node.inputs
    return node


def strided(
    node: Node, strides: Mapping[Node, tuple[Dim, ...]]
) -> tuple[Node, tuple[Dim, ...], Dim] | None:
    """`node` as a strided alias of the value below its views: (base, strides, offset); None where
    it is none.

    `strides`: of the bases in memory; any other base counts as contiguous.
    """
    chain: list[Node] = []
    while node.op in INDEX_VIEWS and node not in strides:
        chain.append(node)
        node = node.inputs[0]
    steps = strides.get(node, contiguous_strides(node.shape))
    offset: Dim = 0
    for view in reversed(chain):
        alias = _alias(view, steps)
        if alias is None:
            return None
        steps, more = alias
        offset = offset + more
    return node, steps, offset


def non_strided_reshape(
    value: Node, axis: int, strides: Mapping[Node, tuple[Dim, ...]]
) -> Node | None:
    """The reshape below `value` that merges several axes without a common stride into `axis`; None
    where there is none. `strides`: as for `strided`."""
    node = value
    while node.op in INDEX_VIEWS:
        (source,) = node.inputs
        if node.op is Op.PERMUTE:
            assert isinstance(node.attr, tuple)
            moved = node.attr[axis]
            assert isinstance(moved, int)
            axis = moved
        elif node.op is Op.UNFOLD and axis == source.type.rank:
            assert isinstance(node.attr, Windows)
            axis = node.attr.axis
        elif node.op is Op.RESHAPE:
            source_axes = _source_axes(source.shape, node.shape, axis)
            if source_axes is None:
                return None
            if len(source_axes) > 1:
                return None if _are_contiguous(source, source_axes, strides) else node
            (axis,) = source_axes or (0,)
        node = source
    return None


def _source_axes(shape: tuple[Dim, ...], target: tuple[Dim, ...], axis: int) -> list[int] | None:
    """The axes of `shape` that are merged into one of `target`, apart from those of size 1."""
    before, whole = product(target[:axis]), product(target[: axis + 1])
    axes, size = list[int](), product(())
    for number, extent in enumerate(shape):
        if size == whole:
            break
        if (size == before or axes) and extent != 1:
            axes.append(number)
        size = size * extent
    return axes if size == whole and product(shape[n] for n in axes) == target[axis] else None


def _are_contiguous(
    source: Node, axes: Sequence[int], strides: Mapping[Node, tuple[Dim, ...]]
) -> bool:
    """Whether `axes` of `source` can be traversed with one stride."""
    alias = strided(source, strides)
    if alias is None:
        return False
    _, steps, _ = alias
    return all(steps[a] == steps[b] * source.shape[b] for a, b in pairwise(axes))


def _alias(view: Node, steps: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], Dim] | None:
    (source,) = view.inputs
    match view.op:
        case Op.BROADCAST:
            sizes = zip(source.shape, view.shape, steps)
            return tuple(0 if size != wide else step for size, wide, step in sizes), 0
        case Op.PERMUTE:
            assert isinstance(view.attr, tuple)
            return tuple(steps[axis] for axis in view.attr if isinstance(axis, int)), 0
        case Op.SLICE:
            assert isinstance(view.attr, tuple)
            parts = [part for part in view.attr if isinstance(part, Range)]
            offset = total(part.start * step for part, step in zip(parts, steps))
            return tuple(step * part.step for part, step in zip(parts, steps)), offset
        case Op.UNFOLD:
            windows = view.attr
            assert isinstance(windows, Windows)
            window_steps = tuple(
                step * windows.step if axis == windows.axis else step
                for axis, step in enumerate(steps)
            )
            return (*window_steps, steps[windows.axis]), 0
        case _:
            reshaped_steps = _reshape_strides(source.shape, steps, view.shape)
            return None if reshaped_steps is None else (reshaped_steps, 0)


def strides_below(view: Node, steps: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The strides of a view's operand, given the view's strides; None if there are no such
    strides."""
    (source,) = view.inputs
    if view.op is Op.RESHAPE:
        return _reshape_strides(view.shape, steps, source.shape)
    assert view.op is Op.PERMUTE and isinstance(view.attr, tuple)
    step_of = dict(zip(view.attr, steps))
    return tuple(step_of[axis] for axis in range(len(steps)))


def _reshape_strides(
    shape: tuple[Dim, ...], steps: tuple[Dim, ...], target: tuple[Dim, ...]
) -> tuple[Dim, ...] | None:
    """Strides of `target` over the same memory; None if the reshape needs a copy."""
    if product(shape) == 0:
        return contiguous_strides(target)
    axes = [(size, step) for size, step in zip(shape, steps) if size != 1]
    target_steps: list[Dim] = []
    size, step = axes.pop() if axes else (1, 1)
    for extent in reversed(target):
        target_steps.append(step)
        if extent == 1:
            continue
        while size != extent and axes and axes[-1][1] == step * size:
            size = size * axes.pop()[0]  # the next axis continues this one
            if size == extent:
                break
        remaining = _exact_quotient(size, extent)
        if remaining is None:
            return None
        size, step = remaining, step * extent
        if size == 1 and axes:
            size, step = axes.pop()
    return tuple(reversed(target_steps))


def _exact_quotient(size: Dim, divisor: Dim) -> Dim | None:
    if size == divisor:
        return 1
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if size % divisor == 0 else None
    if not isinstance(size, int) and size % divisor == 0:
        return size // divisor
    return None


def splits_whole_axes(shape: tuple[Dim, ...], target: tuple[Dim, ...]) -> bool:
    """Whether a reshape only splits and merges whole axes, so that loops can follow it."""
    ours = [size for size in shape if size != 1]
    theirs = [size for size in target if size != 1]
    if product(shape) == 0:
        return True
    while ours and theirs:
        a, b = ours.pop(), theirs.pop()
        if a == b:
            continue
        if (quotient := _exact_quotient(a, b)) is not None:
            ours.append(quotient)
        elif (quotient := _exact_quotient(b, a)) is not None:
            theirs.append(quotient)
        else:
            return False
    return True
