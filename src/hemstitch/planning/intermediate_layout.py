"""Layout propagation of intermediates: a value has the axis order in memory of the values that it
is computed from.

Convolution results are channels-last where the library prefers that. A mask or gradient computed
from them, and read with them, would cause strided accesses if it were channels-first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hemstitch.ir.dims import Dim, known
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import contiguous_strides
from hemstitch.stitching.group import INLINE, Tensor
from hemstitch.stitching.view_indices import INDEX_VIEWS, strided

Order = tuple[int, ...]  # axes by decreasing stride
_THROUGH = frozenset({Op.RESHAPE, Op.SLICE, Op.PAD, Op.CONCAT})  # looked through, to a matmul


def orders(nodes: Sequence[Node], tensors: Mapping[Node, Tensor]) -> dict[Node, Order]:
    """The orders of nodes that should not be in the default order. `nodes`: in topological order.
    `tensors`: of nodes with a known layout."""
    order_of, reshapes = dict[Node, Order](), _reshapes_of(nodes)
    for node in nodes:
        if node in tensors:
            order = _order_of(node.shape, tensors[node].strides)
        elif is_elementwise(node.op):
            order = _agreed(node, order_of)
        elif node.op in (Op.SLICE, Op.PAD):  # of windows
            order = order_of.get(node.inputs[0])
        elif node.op is Op.PERMUTE:
            order = _of_matmul(node)
        elif node.op is Op.RESHAPE:
            order = _reshaped(node, order_of)
        elif node.op is Op.BROADCAST:
            order = _repeated(node, order_of)
        else:
            order = None
        if order is not None and (node in tensors or not _breaks_reshape(node, order, reshapes)):
            order_of[node] = order
    return order_of


def _reshapes_of(nodes: Iterable[Node]) -> Mapping[Node, Sequence[Node]]:
    """The reshapes of each value, through other views."""
    reshapes: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op is Op.RESHAPE:
            below = node
            while below.op in INDEX_VIEWS:
                (below,) = below.inputs
            reshapes.setdefault(below, []).append(node)
    return reshapes


def _breaks_reshape(node: Node, order: Order, reshapes: Mapping[Node, Sequence[Node]]) -> bool:
    """Whether a reshape is an alias in the default order, but would need a copy in `order`. An
    example is K of a matmul that merges channels and lines."""
    strides = strides_in_order(node.shape, order)
    return any(
        strided(reshape, {}) is not None and strided(reshape, {node: strides}) is None
        for reshape in reshapes.get(node, ())
    )


def _agreed(node: Node, order_of: Mapping[Node, Order]) -> Order | None:
    """The common order of the operands, apart from inline ones. Broadcast operands count only where
    there are no others, as for gradients of pooling."""
    read = [x for x in node.inputs if x.op not in INLINE]
    whole = [x for x in read if not _is_repeated(x)]
    operand_orders = (
        set(map(order_of.get, whole)) if whole else {order_of[x] for x in read if x in order_of}
    )
    return operand_orders.pop() if len(operand_orders) == 1 else None


def _is_repeated(node: Node) -> bool:
    while node.op is Op.RESHAPE:
        (node,) = node.inputs
    return node.op is Op.BROADCAST


def _reshaped(node: Node, order_of: Mapping[Node, Order]) -> Order | None:
    """The order of a reshape that is an alias of its operand."""
    (x,) = node.inputs
    if x not in order_of:
        return None
    alias = strided(node, {x: strides_in_order(x.shape, order_of[x])})
    return None if alias is None else _order_of(node.shape, alias[1])


def _repeated(node: Node, order_of: Mapping[Node, Order]) -> Order | None:
    """The operand's order, with each broadcast axis behind the axis before it, as for windows of an
    image."""
    (x,) = node.inputs
    if x not in order_of:
        return None
    new = [axis for axis, (a, b) in enumerate(zip(x.shape, node.shape)) if a != b]
    order = [axis for axis in order_of[x] if axis not in new]
    for axis in new:
        order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(order)


def _of_matmul(permuted: Node) -> Order | None:
    """The order of a permuted matmul result, which is in row-major order before the permutation, as
    for a convolution written as a matmul."""
    below = permuted.inputs[0]
    while below.op in _THROUGH or is_elementwise(below.op):
        below = below.inputs[0]
    axes = permuted.attr
    assert isinstance(axes, tuple)
    return tuple(map(axes.index, range(len(axes)))) if below.op is Op.DOT else None


def _order_of(shape: Sequence[Dim], strides: Sequence[Dim]) -> Order | None:
    """None for the default order, and where there are gaps, broadcasts or unknown sizes."""
    if not all(isinstance(size, int) and size > 0 for size in (*shape, *strides)):
        return None
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-known(strides[axis]), axis)))
    usual = contiguous_strides(tuple(shape))
    if all(size == 1 or a == b for size, a, b in zip(shape, strides, usual)):
        return None
    dense = strides_in_order(shape, order)
    return order if all(n == 1 or a == b for n, a, b in zip(shape, strides, dense)) else None


def strides_in_order(shape: Sequence[Dim], order: Sequence[int]) -> tuple[Dim, ...]:
    """Dense strides for `shape` in this order of axes."""
    steps = contiguous_strides(tuple(shape[axis] for axis in order))
    stride_of = dict(zip(order, steps))
    return tuple(stride_of[axis] for axis in range(len(shape)))
