"""The only maker of nodes: types them, interns equal ones, remembers where they came from."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hemstitch.ir.calls import Call, Within
from hemstitch.ir.dims import Dim, product
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import (
    Address,
    Attr,
    Graph,
    InputAttr,
    Node,
    Op,
    Origin,
    Range,
    Windows,
    op_of_call,
    toposort,
)
from hemstitch.ir.ops import OPS, ResultType
from hemstitch.ir.types import DType, TensorType, TypeKind

Key = tuple[Op, tuple[Node, ...], TensorType, object]
NOTHING = TensorType((), DType.OPAQUE)


class Builder:
    """Belongs to one compile. Equal (op, inputs, type, attr) give the same node."""

    def __init__(self) -> None:
        self._interned: dict[Key, Node] = {}
        self.origins: dict[Node, Origin] = {}
        self.origin: Origin | None = None  # of the nodes made from now on

    @staticmethod
    def after(graph: Graph) -> Builder:
        """One that knows the nodes of `graph`, to go on from there."""
        builder = Builder()
        for node in toposort(graph.roots):
            key = (node.op, node.inputs, node.type, _attr_key(node.attr))
            builder._interned[key] = node
        builder.origins.update(graph.origins)
        return builder

    def make(
        self, op: Op, *inputs: Node, attr: Attr = None, type: TensorType | None = None
    ) -> Node:
        """A node of `op`; `type` is needed where the op's row says GIVEN."""
        row = OPS[op]
        assert row.arity in (None, len(inputs)), f"{op} takes {row.arity} operands"
        if type is None:
            type = self._result_type(op, inputs, attr)
        key = (op, inputs, type, _attr_key(attr))
        node = self._interned.get(key)
        if node is None:
            node = self._interned[key] = Node(op, inputs, type, attr)
            if self.origin is not None:
                self.origins[node] = self.origin
        return node

    @staticmethod
    def _result_type(op: Op, inputs: tuple[Node, ...], attr: Attr) -> TensorType:
        row = OPS[op]
        assert row.result is not ResultType.GIVEN, f"{op} needs its type"
        shape = inputs[-1].type.shape
        if isinstance(attr, tuple):  # a reduction: its axes go
            shape = tuple(size for axis, size in enumerate(shape) if axis not in attr)
        match row.result:
            case ResultType.BOOL:
                dtype = DType.BOOL
            case ResultType.INDEX:
                dtype = DType.I64
            case _:
                dtype = inputs[-1].type.dtype
        return TensorType(shape, dtype)

    # --- sources

    def input(
        self,
        name: str,
        position: int,
        shape: Sequence[Dim],
        dtype: DType,
        strides: Sequence[Dim],
        frozen: bool = False,
        is_written: bool = False,
    ) -> Node:
        attr = InputAttr(name, position, tuple(strides), frozen, is_written)
        return self.make(Op.INPUT, attr=attr, type=TensorType(tuple(shape), dtype))

    def constant(self, value: bool | int | float, dtype: DType, shape: Sequence[Dim] = ()) -> Node:
        """A tensor whose every element is `value`, brought to `dtype`."""
        match dtype.kind:
            case TypeKind.BOOL:
                value = bool(value)
            case TypeKind.INT:
                value = _wrap(int(value), dtype)
            case _:
                value = float(value)
        return self.make(Op.CONSTANT, attr=value, type=TensorType(tuple(shape), dtype))

    def size(self, value: Dim) -> Node:
        return self.make(Op.SIZE, attr=value, type=TensorType((), DType.I64))

    def iota(self, shape: Sequence[Dim], axis: int) -> Node:
        return self.make(Op.IOTA, attr=axis, type=TensorType(tuple(shape), DType.I64))

    def philox(self, seed: Node, shape: Sequence[Dim]) -> Node:
        return self.make(Op.PHILOX, seed, type=TensorType(tuple(shape), DType.F32))

    # --- elementwise and reductions

    def cast(self, x: Node, dtype: DType) -> Node:
        if x.type.dtype is dtype:
            return x
        return self.make(Op.CAST, x, type=TensorType(x.shape, dtype))

    def check(self, condition: Node, x: Node, failure: Failure) -> Node:
        """`x`; the call fails where `condition`, of the same shape, does not hold."""
        return self.make(Op.CHECK, condition, x, attr=failure)

    def reduce(self, op: Op, x: Node, axes: Sequence[int], keep: bool = False) -> Node:
        """Reduce over `axes` (non-negative). With `keep` they stay as size 1."""
        result = self.make(op, x, attr=tuple(sorted(axes)))
        if not keep:
            return result
        return self.reshape(
            result, tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        )

    def scan(self, op: Op, x: Node, axis: int) -> Node:
        """Along `axis` each element has itself and all before it."""
        return x if x.shape[axis] == 1 else self.make(op, x, attr=axis)

    def dot(self, a: Node, b: Node, within: Within | None = None) -> Node:
        """[..., m, k] times [..., k, n]: the sums as they are added up, not yet rounded."""
        shape = (*a.shape[:-1], b.shape[-1])
        type_ = TensorType(shape, a.type.dtype.compute)
        return self.make(Op.DOT, a, b, attr=within, type=type_)

    # --- views; each returns its operand where it would do nothing

    def broadcast(self, x: Node, shape: Sequence[Dim]) -> Node:
        """PyTorch's rules: missing leading axes are added, axes of size 1 grow."""
        shape = tuple(shape)
        missing = len(shape) - x.type.rank
        x = self.reshape(x, (1,) * missing + x.shape)
        if x.shape == shape:
            return x
        assert all(a in (1, b) for a, b in zip(x.shape, shape)), f"{x.type} to {shape}"
        return self.make(Op.BROADCAST, x, type=TensorType(shape, x.type.dtype))

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        shape = tuple(shape)
        if x.shape == shape:
            return x
        assert product(x.shape) == product(shape), f"cannot reshape {x.type} to {shape}"
        return self.make(Op.RESHAPE, x, type=TensorType(shape, x.type.dtype))

    def permute(self, x: Node, order: Sequence[int]) -> Node:
        order = tuple(order)
        if order == tuple(range(x.type.rank)):
            return x
        shape = tuple(x.shape[axis] for axis in order)
        return self.make(Op.PERMUTE, x, attr=order, type=TensorType(shape, x.type.dtype))

    def slice(self, x: Node, ranges: Sequence[Range], shape: Sequence[Dim]) -> Node:
        """One Range an axis; `shape` gives the lengths. What has one element has no step."""
        shape = tuple(shape)
        parts = zip(ranges, shape)
        ranges = [Range(part.start) if length == 1 else part for part, length in parts]
        if shape == x.shape and all(part == Range(0) for part in ranges):
            return x
        return self.make(Op.SLICE, x, attr=tuple(ranges), type=TensorType(shape, x.type.dtype))

    def unfold(self, x: Node, axis: int, size: int, step: int) -> Node:
        """As many windows of `axis` as there are, their elements along a last axis."""
        count = (x.shape[axis] - size) // step + 1
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
        windows = Windows(axis, size, step)
        return self.make(Op.UNFOLD, x, attr=windows, type=TensorType(shape, x.type.dtype))

    def pad(self, x: Node, low: Sequence[int], shape: Sequence[Dim], fill: Node) -> Node:
        """`fill` is a scalar of x's dtype; high padding follows from `shape`. Never negative."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        return self.make(Op.PAD, x, fill, attr=tuple(low), type=TensorType(shape, x.type.dtype))

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum((part.shape[axis] for part in parts[1:]), start=shape[axis])
        type_ = TensorType(tuple(shape), parts[0].type.dtype)
        return self.make(Op.CONCAT, *parts, attr=axis, type=type_)

    def gather(
        self,
        source: Node,
        indices: Sequence[Node],
        addresses: Sequence[Address],
        shape: Sequence[Dim],
    ) -> Node:
        """See `Address`. Index operands are integers of the result's shape, not negative."""
        type_ = TensorType(tuple(shape), source.type.dtype)
        return self.make(Op.GATHER, source, *indices, attr=tuple(addresses), type=type_)

    def scatter_add(
        self,
        value: Node,
        indices: Sequence[Node],
        addresses: Sequence[Address],
        shape: Sequence[Dim],
    ) -> Node:
        """The transpose of `gather`: its elements added up where `addresses` say, zero elsewhere.
        Index operands are integers of the value's shape, not negative."""
        type_ = TensorType(tuple(shape), value.type.dtype)
        return self.make(Op.SCATTER_ADD, value, *indices, attr=tuple(addresses), type=type_)

    # --- library

    def call(self, call: Call, inputs: Sequence[Node]) -> tuple[Node | None, ...]:
        """The call's results; None where a result is no tensor, or is not wanted."""
        node = self.make(op_of_call(call), *inputs, attr=call, type=NOTHING)
        return tuple(
            None if result is None else self.make(Op.RESULT, node, attr=index, type=result[0])
            for index, result in enumerate(call.results)
        )


def _attr_key(attr: Attr) -> object:
    """Python says True == 1 == 1.0 and 0.0 == -0.0; here they differ. A NaN equals itself."""
    if isinstance(attr, float):
        return struct.pack("d", attr)
    return (type(attr), attr)


def _wrap(value: int, dtype: DType) -> int:
    bits = 8 * dtype.bytes
    value &= (1 << bits) - 1
    if dtype is not DType.U8 and value >> (bits - 1):
        value -= 1 << bits
    return value
