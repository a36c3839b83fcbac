"""Where a view's element comes from: index of the result to index of the operand.

Views do no work in a kernel; they only bend the index at which the value below them is read.
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
BENDING = frozenset({Op.BROADCAST, Op.RESHAPE, Op.PERMUTE, Op.SLICE, Op.UNFOLD})
INVERTIBLE = frozenset({Op.RESHAPE, Op.PERMUTE})  # and one of the result for every source element


def through(view: Node, indices: Indices) -> Indices:
    """The index into view.inputs[0] that element `indices` of `view` is read from."""
    (source,) = view.inputs
    match view.op:
        case Op.BROADCAST:
            return tuple(
                Index() if size == 1 else index for size, index in zip(source.shape, indices)
            )
        case Op.PERMUTE:
            order = view.attr
            assert isinstance(order, tuple)
            found = dict(zip(order, indices))
            return tuple(found[axis] for axis in range(len(order)))
        case Op.SLICE:
            assert isinstance(view.attr, tuple)
            return tuple(
                _sliced(part, index) for part, index in zip(view.attr, indices) if _is_range(part)
            )
        case Op.UNFOLD:
            windows = view.attr
            assert isinstance(windows, Windows)
            *outer, inside = indices
            place = outer[windows.axis].scaled(windows.step) + inside
            return (*outer[: windows.axis], place, *outer[windows.axis + 1 :])
        case _:
            assert view.op is Op.RESHAPE, view.op
            return reshaped(view.shape, source.shape, indices)


def _is_range(part: object) -> bool:
    return isinstance(part, Range)


def _sliced(part: object, index: Index) -> Index:
    assert isinstance(part, Range)
    return index.scaled(part.step).shifted(part.start)


def reshaped(shape: tuple[Dim, ...], source: tuple[Dim, ...], indices: Indices) -> Indices:
    """Indices for `shape` as indices for `source`; refused where an axis would be cut unevenly."""
    if product(shape) == 0:
        return (Index(),) * len(source)
    rest = linear(indices, contiguous_strides(shape))
    found: list[Index] = []
    for size, step in zip(source, contiguous_strides(source)):
        if size == 1:
            found.append(Index())
            continue
        parts = divide(rest, step)
        if parts is None:
            raise Refused("reshape", f"{_text(source)} to {_text(shape)} cuts an axis unevenly")
        whole, rest = parts
        found.append(whole)
    return tuple(found)


def _text(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def below_views(node: Node, memory: Container[Node]) -> Node:
    """What `node` is a view of, down to the first that is in `memory`."""
    while node.op in BENDING and node not in memory:
        (node,) = node.inputs
    return node


def strided(
    node: Node, strides: Mapping[Node, tuple[Dim, ...]]
) -> tuple[Node, tuple[Dim, ...], Dim] | None:
    """`node` as a strided alias of the value below its views: (base, strides, offset).

    None where no strides can say it. `strides` holds those of the bases that are in memory;
    any other base counts as contiguous.
    """
    chain: list[Node] = []
    while node.op in BENDING and node not in strides:
        chain.append(node)
        node = node.inputs[0]
    steps = strides.get(node, contiguous_strides(node.shape))
    offset: Dim = 0
    for view in reversed(chain):
        found = _alias(view, steps)
        if found is None:
            return None
        steps, more = found
        offset = offset + more
    return node, steps, offset


def broken_at(value: Node, axis: int, strides: Mapping[Node, tuple[Dim, ...]]) -> Node | None:
    """The reshape below which `axis` of `value` is several that no one stride goes through; None
    where there is none, or it cannot be told. `strides`: as for `strided`."""
    node = value
    while node.op in BENDING:
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
            made_of = _made_of(source.shape, node.shape, axis)
            if made_of is None:
                return None
            if len(made_of) > 1:
                return None if _lie_together(source, made_of, strides) else node
            (axis,) = made_of or (0,)
        node = source
    return None


def _made_of(shape: tuple[Dim, ...], target: tuple[Dim, ...], axis: int) -> list[int] | None:
    """The axes of `shape` that one of `target` is made of, those of size 1 left out."""
    before, whole = product(target[:axis]), product(target[: axis + 1])
    found, size = list[int](), product(())
    for number, extent in enumerate(shape):
        if size == whole:
            break
        if (size == before or found) and extent != 1:
            found.append(number)
        size = size * extent
    return found if size == whole and product(shape[n] for n in found) == target[axis] else None


def _lie_together(
    source: Node, axes: Sequence[int], strides: Mapping[Node, tuple[Dim, ...]]
) -> bool:
    found = strided(source, strides)
    if found is None:
        return False
    _, steps, _ = found
    return all(steps[a] == steps[b] * source.shape[b] for a, b in pairwise(axes))


def _alias(view: Node, steps: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], Dim] | None:
    (source,) = view.inputs
    match view.op:
        case Op.BROADCAST:
            grown = zip(source.shape, view.shape, steps)
            return tuple(0 if size != wide else step for size, wide, step in grown), 0
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
            apart = tuple(
                step * windows.step if axis == windows.axis else step
                for axis, step in enumerate(steps)
            )
            return (*apart, steps[windows.axis]), 0
        case _:
            reshaped_steps = _reshape_strides(source.shape, steps, view.shape)
            return None if reshaped_steps is None else (reshaped_steps, 0)


def strides_below(view: Node, steps: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Of what `view` shows, where `steps` are those of the view; None if no strides can say it."""
    (source,) = view.inputs
    if view.op is Op.RESHAPE:
        return _reshape_strides(view.shape, steps, source.shape)
    assert view.op is Op.PERMUTE and isinstance(view.attr, tuple)
    found = dict(zip(view.attr, steps))
    return tuple(found[axis] for axis in range(len(steps)))


def _reshape_strides(
    shape: tuple[Dim, ...], steps: tuple[Dim, ...], target: tuple[Dim, ...]
) -> tuple[Dim, ...] | None:
    """Strides of `target` over the same memory, innermost axes first; None if it needs a copy."""
    if product(shape) == 0:
        return contiguous_strides(target)
    axes = [(size, step) for size, step in zip(shape, steps) if size != 1]
    found: list[Dim] = []
    size, step = axes.pop() if axes else (1, 1)
    for wanted in reversed(target):
        found.append(step)
        if wanted == 1:
            continue
        while size != wanted and axes and axes[-1][1] == step * size:
            size = size * axes.pop()[0]  # the next axis continues this one
            if size == wanted:
                break
        left = _exact_quotient(size, wanted)
        if left is None:
            return None
        size, step = left, step * wanted
        if size == 1 and axes:
            size, step = axes.pop()
    return tuple(reversed(found))


def _exact_quotient(size: Dim, divisor: Dim) -> Dim | None:
    if size == divisor:
        return 1
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if size % divisor == 0 else None
    if not isinstance(size, int) and size % divisor == 0:
        return size // divisor
    return None


def is_even(shape: tuple[Dim, ...], target: tuple[Dim, ...]) -> bool:
    """Whether a reshape only splits and merges whole axes, so that loops can follow it."""
    ours = [size for size in shape if size != 1]
    theirs = [size for size in target if size != 1]
    if product(shape) == 0:
        return True
    while ours and theirs:
        a, b = ours.pop(), theirs.pop()
        if a == b:
            continue
        if (left := _exact_quotient(a, b)) is not None:
            ours.append(left)
        elif (left := _exact_quotient(b, a)) is not None:
            theirs.append(left)
        else:
            return False
    return True
