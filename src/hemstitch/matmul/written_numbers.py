"""Integers that the program has written down: the numbers of rows and columns, and what is computed
of them. Takes nodes of the graph IR; gives their values in NumPy, of those that no argument
decides. An axis that a value is broadcast along may have size 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemstitch.ir.dims import known
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_elementwise
from hemstitch.kernel_ir.arithmetic import ARITHMETIC, COMPUTED, apply, cast

Array = NDArray[Any]
MAX_ELEMENTS = 1 << 16  # of a value
Value = Callable[[Node, list[Array]], "Array | None"]


def written_numbers(nodes: Iterable[Node]) -> dict[Node, Array]:
    """`nodes`: producers before consumers."""
    numbers: dict[Node, Array] = {}
    for node in nodes:
        is_integer = not node.type.dtype.is_float and node.type.dtype in COMPUTED
        is_sized = all(isinstance(size, int) and size > 0 for size in node.shape)
        if is_integer and is_sized and all(operand in numbers for operand in node.inputs):
            value = _value(node, [numbers[operand] for operand in node.inputs])
            if value is not None:
                numbers[node] = value
    return numbers


def _value(node: Node, operands: list[Array]) -> Array | None:
    """None: of an operation that makes no such numbers, or of more elements than are looked at."""
    if node.op in LAZY:
        return LAZY[node.op](node, operands)
    if is_elementwise(node.op) and node.op in ARITHMETIC:
        elements = np.prod(np.broadcast_shapes(*(x.shape for x in operands)), dtype=int)
        return apply(node.op, *operands) if elements <= MAX_ELEMENTS else None
    is_small = all(np.prod(_sizes(x), dtype=int) <= MAX_ELEMENTS for x in (node, *node.inputs))
    if node.op not in OF_ALL_ELEMENTS or not is_small:
        return None
    whole = [np.broadcast_to(x, _sizes(read)) for x, read in zip(operands, node.inputs)]
    return OF_ALL_ELEMENTS[node.op](node, whole)


def _iota(node: Node, _: list[Array]) -> Array | None:
    assert isinstance(node.attr, int)
    along = _along(node.attr, _sizes(node))
    return along if along.size <= MAX_ELEMENTS else None


def _along(axis: int, shape: Sequence[int]) -> Array:
    """The index along an axis; the others have size 1."""
    return np.arange(shape[axis]).reshape(
        [size if n == axis else 1 for n, size in enumerate(shape)]
    )


def _sliced(node: Node, operands: list[Array]) -> Array | None:
    """None where only a call knows which part."""
    ranges: Any = node.attr
    if not all(isinstance(part.start, int) for part in ranges):
        return None
    places = [part.start + part.step * np.arange(n) for part, n in zip(ranges, _sizes(node))]
    return operands[0][np.ix_(*places)] if places else operands[0]


def _gathered(node: Node, operands: list[Array]) -> Array | None:
    """None where an index is out of range: it is said where the program runs."""
    addresses: Any = node.attr
    shape, source = _sizes(node), operands[0]
    indices = [
        _along(address.axis, shape) if address.operand is None else operands[address.operand]
        for address in addresses
    ]
    is_inside = all(
        index.min() >= 0 and index.max() < size for index, size in zip(indices, source.shape)
    )
    return np.broadcast_to(source[tuple(indices)], shape) if is_inside else None


# Their operands may have axes of size 1 that are broadcast.
LAZY: Mapping[Op, Value] = {
    Op.CONSTANT: lambda node, _: np.full(
        (1,) * node.type.rank, node.attr, COMPUTED[node.type.dtype]
    ),
    Op.IOTA: _iota,
    Op.BROADCAST: lambda _, operands: operands[0],
    Op.PERMUTE: lambda node, operands: operands[0].transpose(_axes(node)),
    Op.CAST: lambda node, operands: cast(operands[0], node.type.dtype),
}
OF_ALL_ELEMENTS: Mapping[Op, Value] = {
    Op.RESHAPE: lambda node, operands: operands[0].reshape(_sizes(node)),
    Op.SLICE: _sliced,
    Op.CONCAT: lambda node, operands: np.concatenate(operands, _axis(node)),
    Op.GATHER: _gathered,
    Op.CUMSUM: lambda node, operands: np.cumsum(operands[0], _axis(node)),
    Op.SUM: lambda node, operands: np.sum(operands[0], _axes(node), operands[0].dtype),
    Op.MAX: lambda node, operands: np.max(operands[0], _axes(node)),
    Op.MIN: lambda node, operands: np.min(operands[0], _axes(node)),
    Op.ANY: lambda node, operands: np.any(operands[0], _axes(node)),
    Op.ALL: lambda node, operands: np.all(operands[0], _axes(node)),
}


def _axis(node: Node) -> int:
    assert isinstance(node.attr, int)
    return node.attr


def _axes(node: Node) -> tuple[int, ...]:
    axes: Any = node.attr
    return tuple(axes)


def _sizes(node: Node) -> tuple[int, ...]:
    return tuple(map(known, node.shape))
