"""What must be in memory whatever the plan, as it is found step by step; and how it is looked at:
strides and an offset over a tensor."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, product
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import contiguous_strides
from hemstitch.stitching.group import Tensor, Write, is_member
from hemstitch.stitching.view_indices import INVERTIBLE, below_views, strided, strides_below


@dataclass(frozen=True, slots=True, eq=False)
class Alias:
    """A library operand: strides and offset over a tensor in memory."""

    tensor: Tensor
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim

    @property
    def is_whole(self) -> bool:
        """It is the tensor itself."""
        return self.shows_as(Alias(self.tensor, self.tensor.node.shape, self.tensor.strides, 0))

    def shows_as(self, other: Alias) -> bool:
        """Both look at the same memory in the same way."""
        same = (self.tensor, self.shape, self.offset) == (other.tensor, other.shape, other.offset)
        return same and agree(self.shape, self.strides, other.strides)


@dataclass(slots=True)
class Materialisation:
    """`tensors`: every node in memory, views among them where nothing else will do.
    `writes`: what kernels must store there that is not simply a member's own value.
    `operands`: for each library node, where each input is read.
    `outputs`: for each graph output, where the caller finds it.
    `views`: views that writes fill; library calls and outputs may read there, kernels do not.
    `in_place`: results of library calls that these write over an argument of the graph.
    `fusion_barriers`: reshapes that readers are known not to look through.
    `hints`: the graph's."""

    tensors: dict[Node, Tensor] = field(default_factory=dict)
    views: dict[Node, Tensor] = field(default_factory=dict)
    in_place: set[Node] = field(default_factory=set)
    writes: list[Write] = field(default_factory=list)
    operands: dict[Node, tuple[Alias, ...]] = field(default_factory=dict)
    outputs: dict[int, Alias] = field(default_factory=dict)
    fusion_barriers: frozenset[Node] = frozenset()
    hints: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_memory(self) -> Mapping[Node, Tensor]:
        """`tensors`, and `views`."""
        return ChainMap(self.tensors, self.views)

    def keep(self, alias: Alias) -> None:
        """What `alias` looks at will be in memory."""
        if alias.tensor.node not in self.views:
            self.tensors.setdefault(alias.tensor.node, alias.tensor)

    def write(self, value: Node, tensor: Tensor) -> Tensor:
        """Have `value` stored in `tensor`; each part of a concatenation for itself."""
        if is_view(value.op):
            self.views.setdefault(value, tensor)
        start: Dim = 0
        parts = [(value, tensor.strides, start)]
        while parts:
            part, strides, offset = parts.pop()
            whole = self._concatenation(part, strides, part is value)
            if whole is None:
                self.writes.append(Write(part, tensor, strides, offset))
                continue
            found, strides = whole
            axis = found.attr
            assert isinstance(axis, int)
            for piece in found.inputs:
                parts.append((piece, strides, offset))
                offset = offset + piece.shape[axis] * strides[axis]
        return tensor

    def _concatenation(
        self, part: Node, strides: tuple[Dim, ...], is_whole: bool
    ) -> tuple[Node, tuple[Dim, ...]] | None:
        """What `part`, written with these strides, shows, and the strides of that; None if it is no
        concatenation, or if that is in memory already."""
        node = part
        while node.op in INVERTIBLE and (node is part or node not in self.tensors):
            below = strides_below(node, strides)
            if below is None:
                return None
            (node,), strides = node.inputs, below
        is_new = node not in self.tensors or (is_whole and node is part)
        return (node, strides) if node.op is Op.CONCAT and is_new else None


def agree(shape: tuple[Dim, ...], a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Equal strides wherever they matter."""
    return product(shape) == 0 or all(size == 1 or x == y for size, x, y in zip(shape, a, b))


def alias_of(tensors: Mapping[Node, Tensor], value: Node) -> Alias | None:
    """`value` as strides over something that is in memory, or will be for its sake."""
    base = below_views(value, tensors)
    layout = strided(value, {base: tensors[base].strides} if base in tensors else {})
    if layout is None:
        return None
    _, strides, offset = layout
    if base in tensors:
        return Alias(tensors[base], value.shape, strides, offset)
    if not is_member(base) or base is value:
        return None
    return Alias(Tensor(base, contiguous_strides(base.shape)), value.shape, strides, offset)


def another(found: Materialisation, value: Node, strides: tuple[Dim, ...]) -> Tensor:
    return Tensor(value, strides, is_copy=value in found.tensors)


def copy_of(
    found: Materialisation, value: Node, strides: tuple[Dim, ...], private: Container[Tensor] = ()
) -> Tensor | None:
    """One of `value` with these strides that is made already, but none of `private`."""
    copies = (w.tensor for w in found.writes if w.tensor.node is value and w.strides == strides)
    return next((tensor for tensor in copies if tensor not in private), None)


def uncopied(found: Materialisation, value: Node) -> Alias:
    """Itself: no kernel can copy a type that only library calls touch."""
    tensor = found.tensors[value]
    return Alias(tensor, value.shape, tensor.strides, 0)
