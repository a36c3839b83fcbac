"""The identity of kernels: groups with equal keys become the same kernel, apart from the tensors
that it is bound to and the elements at which its parameters begin.

Models repeat kernels in each layer, and recurrent models in each step, for another row of the same
tensor. The key lists the groups' nodes in the order of a traversal, with numbers in place of nodes
and tensors. So equal keys prove an isomorphism, without hashing. The key contains the distances
between slices of a tensor, but not where they begin.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Node, Op, Range
from hemstitch.stitching.group import Group, Tensor, Write, leaf_below


@dataclass(frozen=True, slots=True)
class Identity:
    """`tensors`: what the groups are bound to, by their numbers in `key`. `places`: for each
    tensor, the element at which the kernel's parameter begins; no access precedes it."""

    key: Hashable
    tensors: tuple[Tensor, ...]
    places: tuple[int, ...]


def identity(groups: Sequence[Group], alignment: int = 1) -> Identity:
    """`alignment`: of the places, in bytes."""
    bound = _Bound()
    rows = tuple(_Numbering(group, bound).rows() for group in groups)
    facts = tuple(
        (t.node.type, t.strides, t.is_copy, t.is_argument, t.is_result, t.may_be_unallocated)
        for t in bound.numbers
    )
    places = bound.places(alignment)
    distances = tuple(offset - places[number] for number, offset in bound.offsets)
    return Identity((rows, facts, distances), tuple(bound.numbers), places)


@dataclass(slots=True)
class _Bound:
    """The tensors of a kernel. `offsets`: of each access, as (number of the tensor, element).
    `least`: for each tensor, the first element that is accessed."""

    numbers: dict[Tensor, int] = field(default_factory=dict)
    offsets: list[tuple[int, Dim]] = field(default_factory=list)
    least: list[int | None] = field(default_factory=list)

    def number(self, tensor: Tensor) -> int:
        if tensor not in self.numbers:
            self.numbers[tensor] = len(self.numbers)
            self.least.append(None)
        return self.numbers[tensor]

    def access(
        self, tensor: Tensor, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim
    ) -> int:
        number = self.number(tensor)
        self.offsets.append((number, offset))
        first = _first(shape, strides, offset)
        least = self.least[number]
        self.least[number] = first if least is None else min(least, first)
        return number

    def places(self, alignment: int) -> tuple[int, ...]:
        pairs = self.numbers.items()
        return tuple(_place(tensor, self.least[number], alignment) for tensor, number in pairs)


def _first(shape: Iterable[Dim], strides: Iterable[Dim], offset: Dim) -> int:
    """The first element that is accessed, 0 where that depends on symbolic sizes."""
    for size, step in zip(shape, strides):
        if isinstance(step, int) and step >= 0:
            continue
        offset = offset + (size - 1) * step
    return offset if isinstance(offset, int) else 0


def _place(tensor: Tensor, first: int | None, alignment: int) -> int:
    sizes = (*tensor.node.shape, *tensor.strides)
    if not first or not all(isinstance(size, int) for size in sizes):
        return 0
    return first - first % max(1, alignment // tensor.node.type.dtype.bytes)


class _Numbering:
    """Numbers the nodes of a group: members in their order, each behind its operands, then
    writes."""

    def __init__(self, group: Group, bound: _Bound) -> None:
        self.group = group
        self.bound = bound
        self.numbers: dict[Node, int] = {}
        self.node_rows: list[Hashable] = []

    def rows(self) -> Hashable:
        group = self.group
        members = [(self._number(node), node in group.rematerialised) for node in group.members]
        writes = [self._write(write) for write in group.writes]
        read = [self.bound.number(tensor) for tensor in group.reads.values()]
        return tuple(self.node_rows), tuple(members), tuple(writes), tuple(read)

    def _write(self, write: Write) -> Hashable:
        for source in write.sources:
            self._number(source)
        is_own = write.value is write.tensor.node
        value = [self._number(node) for node in (write.value, *write.sources)]
        shape, strides = write.value.shape, write.strides
        number = self.bound.access(write.tensor, shape, strides, write.offset)
        return (*value, is_own, number, strides)

    def _number(self, start: Node) -> int:
        """Iterative, since chains may be thousands of nodes long."""
        work = [(start, False)]
        while work:
            node, inputs_done = work.pop()
            if node in self.numbers:
                continue
            row = None if inputs_done else self._leaf(node)
            if row is None and not inputs_done and node.inputs:
                work.append((node, True))
                work.extend((operand, False) for operand in reversed(node.inputs))
                continue
            self.node_rows.append(self._row(node) if row is None else row)
            self.numbers[node] = len(self.numbers)
        return self.numbers[start]

    def _leaf(self, node: Node) -> Hashable:
        """The row of a strided view of a tensor in memory; None for other nodes."""
        leaf = leaf_below(self.group, node)
        if leaf is None:
            return None
        number = self.bound.access(leaf[0], node.shape, leaf[1], leaf[2])
        chain: list[Hashable] = []
        while node not in self.group.reads:
            chain.append((node.op, node.type, _without_starts(node)))
            (node,) = node.inputs
        return number, node.type, tuple(chain)

    def _row(self, node: Node) -> Hashable:
        inputs = tuple(self.numbers[operand] for operand in node.inputs)
        # By its text, since 0.0 == -0.0.
        attr = repr(node.attr) if node.op is Op.CONSTANT else node.attr
        return node.op, node.type, attr, inputs


def _without_starts(view: Node) -> Hashable:
    if view.op is not Op.SLICE or not isinstance(view.attr, tuple):
        return view.attr
    return tuple(part.step for part in view.attr if isinstance(part, Range))
