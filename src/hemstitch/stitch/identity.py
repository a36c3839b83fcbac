"""When groups become the same kernel. Takes groups, gives a key: equal keys, equal kernels but for
the tensors that they are bound to.

The layers of a model ask for the same kernels again and again. The key is the groups' own nodes in
the order in which they are met, with numbers for nodes and tensors instead of themselves; so equal
keys are an isomorphism that was found, and no hash stands for one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_view
from hemstitch.stitch.group import Group, Tensor, Write, leaf_below


@dataclass(frozen=True, slots=True)
class Identity:
    """`tensors`: what the groups are bound to, by the numbers that `key` uses."""

    key: Hashable
    tensors: tuple[Tensor, ...]


def identity(groups: Sequence[Group], *, with_places: bool = True) -> Identity:
    """Without places it does not matter where in a tensor a single element lies, as the seeds of
    a model's dropouts do; the kernels then differ in a constant."""
    tensors: dict[Tensor, int] = {}
    rows = tuple(_Numbering(group, tensors, with_places).rows() for group in groups)
    facts = tuple(
        (t.node.type, t.strides, t.is_copy, t.is_argument, t.is_result, t.may_be_nowhere)
        for t in tensors
    )
    return Identity((rows, facts), tuple(tensors))


class _Numbering:
    """Members first, in their order, each behind what it reads; then the writes."""

    def __init__(self, group: Group, tensors: dict[Tensor, int], with_places: bool) -> None:
        self.group = group
        self.tensors = tensors
        self.with_places = with_places
        self.written = {write.tensor for write in group.writes}
        self.numbers: dict[Node, int] = {}
        self.found: list[Hashable] = []

    def rows(self) -> Hashable:
        group = self.group
        members = [(self._number(node), node in group.remade) for node in group.members]
        writes = [self._write(write) for write in group.writes]
        read = [self._tensor(tensor) for tensor in group.reads.values()]
        return tuple(self.found), tuple(members), tuple(writes), tuple(read)

    def _write(self, write: Write) -> Hashable:
        for source in write.sources:
            self._number(source)
        is_own = write.value is write.tensor.node
        value = [self._number(node) for node in (write.value, *write.sources)]
        return (*value, is_own, self._tensor(write.tensor), write.strides, write.offset)

    def _tensor(self, tensor: Tensor) -> int:
        return self.tensors.setdefault(tensor, len(self.tensors))

    def _number(self, start: Node) -> int:
        """Without recursion: chains may be thousands of nodes long."""
        work = [(start, False)]
        while work:
            node, inputs_done = work.pop()
            if node in self.numbers:
                continue
            below = () if inputs_done else self._below(node)
            if below:
                work.append((node, True))
                work.extend((operand, False) for operand in reversed(below))
            else:
                row = self._row(node)
                self.numbers[node] = len(self.numbers)
                self.found.append(row)
        return self.numbers[start]

    def _below(self, node: Node) -> tuple[Node, ...]:
        is_leaf = node in self.group.reads or self._element(node) is not None
        return () if is_leaf else node.inputs

    def _row(self, node: Node) -> Hashable:
        if node in self.group.reads:
            return "read", node.type, self._tensor(self.group.reads[node])
        element = self._element(node)
        if element is not None:
            return "element", node.type, self._tensor(element)
        inputs = tuple(self.numbers[operand] for operand in node.inputs)
        # By its text, since 0 equals -0, and is another number.
        attr = repr(node.attr) if node.op is Op.CONSTANT else node.attr
        return node.op, node.type, attr, inputs

    def _element(self, node: Node) -> Tensor | None:
        """The tensor that `node` is one element of, where its place does not matter."""
        if self.with_places or node.type.size != 1 or not is_view(node.op):
            return None
        leaf = leaf_below(self.group, node)
        return None if leaf is None or leaf[0] in self.written else leaf[0]
