"""In which order of its axes a value lies in memory between kernels: as what it is computed from.

A convolution's results lie by channels, where the library likes that better. A mask or a gradient
made of them and read beside them would be gathered from afar if it lay by rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import contiguous_strides
from hemstitch.stitching.group import INLINE, Tensor
from hemstitch.stitching.view_indices import INDEX_VIEWS, strided

Order = tuple[int, ...]  # axes, the one with the largest stride first
_THROUGH = frozenset({Op.RESHAPE, Op.SLICE, Op.PAD, Op.CONCAT})  # to a product


def orders(nodes: Sequence[Node], tensors: Mapping[Node, Tensor]) -> dict[Node, Order]:
    """Of the nodes, sorted, that had better lie in another order than that of their axes.
    `tensors`: where it is known how a value lies."""
    found, merged = dict[Node, Order](), _merged(nodes)
    for node in nodes:
        if node in tensors:
            order = _order_of(node.shape, tensors[node].strides)
        elif is_elementwise(node.op):
            order = _agreed(node, found)
        elif node.op in (Op.SLICE, Op.PAD):  # as windows are looked at
            order = found.get(node.inputs[0])
        elif node.op is Op.PERMUTE:
            order = _of_product(node)
        elif node.op is Op.RESHAPE:
            order = _reshaped(node, found)
        elif node.op is Op.BROADCAST:
            order = _repeated(node, found)
        else:
            order = None
        if order is not None and (node in tensors or not _is_broken(node, order, merged)):
            found[node] = order
    return found


def _merged(nodes: Iterable[Node]) -> Mapping[Node, Sequence[Node]]:
    """The reshapes through which a value is seen."""
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op is Op.RESHAPE:
            below = node
            while below.op in INDEX_VIEWS:
                (below,) = below.inputs
            found.setdefault(below, []).append(node)
    return found


def _is_broken(node: Node, order: Order, merged: Mapping[Node, Sequence[Node]]) -> bool:
    """A reshape finds axes in one piece that would not be in this order: what a product adds up
    along, as the channels and lines that are one step of a recurrence."""
    strides = strides_in_order(node.shape, order)
    return any(
        strided(reshape, {}) is not None and strided(reshape, {node: strides}) is None
        for reshape in merged.get(node, ())
    )


def _agreed(node: Node, found: Mapping[Node, Order]) -> Order | None:
    """What its operands agree on, but for those that are made on the spot. What is repeated has a
    say where nothing else has, as gradients of pooling that each element of a window gets."""
    read = [x for x in node.inputs if x.op not in INLINE]
    whole = [x for x in read if not _is_repeated(x)]
    known = set(map(found.get, whole)) if whole else {found[x] for x in read if x in found}
    return known.pop() if len(known) == 1 else None


def _is_repeated(node: Node) -> bool:
    while node.op is Op.RESHAPE:
        (node,) = node.inputs
    return node.op is Op.BROADCAST


def _reshaped(node: Node, found: Mapping[Node, Order]) -> Order | None:
    """The order in which a reshape without a copy shows its operand."""
    (x,) = node.inputs
    if x not in found:
        return None
    alias = strided(node, {x: strides_in_order(x.shape, found[x])})
    return None if alias is None else _order_of(node.shape, alias[1])


def _repeated(node: Node, found: Mapping[Node, Order]) -> Order | None:
    """That of the operand, with each axis of repetitions behind the axis before it: as windows of
    an image are."""
    (x,) = node.inputs
    if x not in found:
        return None
    new = [axis for axis, (a, b) in enumerate(zip(x.shape, node.shape)) if a != b]
    order = [axis for axis in found[x] if axis not in new]
    for axis in new:
        order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(order)


def _of_product(permuted: Node) -> Order | None:
    """Of what shows a product in another order of its axes, which lies by rows, as images do that a
    product of their elements makes."""
    below = permuted.inputs[0]
    while below.op in _THROUGH or is_elementwise(below.op):
        below = below.inputs[0]
    axes = permuted.attr
    assert isinstance(axes, tuple)
    return tuple(map(axes.index, range(len(axes)))) if below.op is Op.DOT else None


def _order_of(shape: Sequence[Dim], strides: Sequence[Dim]) -> Order | None:
    """None for the usual one, and where there are gaps, repetitions or unknown sizes."""
    if not all(isinstance(size, int) and size > 0 for size in (*shape, *strides)):
        return None
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-known(strides[axis]), axis)))
    usual = contiguous_strides(tuple(shape))
    if all(size == 1 or a == b for size, a, b in zip(shape, strides, usual)):
        return None
    dense = strides_in_order(shape, order)
    return order if all(n == 1 or a == b for n, a, b in zip(shape, strides, dense)) else None


def strides_in_order(shape: Sequence[Dim], order: Sequence[int]) -> tuple[Dim, ...]:
    """Without gaps."""
    steps = contiguous_strides(tuple(shape[axis] for axis in order))
    found = dict(zip(order, steps))
    return tuple(found[axis] for axis in range(len(shape)))
