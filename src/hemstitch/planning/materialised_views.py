"""Materialisation requirements under construction: the tensors that any plan stores, and aliases
(strides and offsets) of them."""

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
    """A strided view (shape, strides, offset) of a tensor in memory."""

    tensor: Tensor
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim

    @property
    def is_whole(self) -> bool:
        """Whether it is the tensor itself."""
        return self.shows_as(Alias(self.tensor, self.tensor.node.shape, self.tensor.strides, 0))

    def shows_as(self, alias: Alias) -> bool:
        """Whether both are the same view of the same tensor."""
        same = (self.tensor, self.shape, self.offset) == (alias.tensor, alias.shape, alias.offset)
        return same and same_strides(self.shape, self.strides, alias.strides)


@dataclass(slots=True)
class Materialisation:
    """Materialisation requirements of a graph.

    `tensors`: the nodes in memory; views only where an alias does not suffice. `views`: views that
    writes fill; library calls and outputs may read them, kernels do not. `in_place`: results of
    library calls that overwrite an argument. `writes`: stores by kernels that are not simply a
    member's own value. `operands`: for each library node, an alias per input. `outputs`: for each
    graph output, its alias. `fusion_barriers`: reshapes that kernels cannot look through. `hints`:
    the graph's.
    """

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
        """`tensors` and `views`."""
        return ChainMap(self.tensors, self.views)

    def require(self, alias: Alias) -> None:
        """Adds the tensor of `alias` to the nodes in memory."""
        if alias.tensor.node not in self.views:
            self.tensors.setdefault(alias.tensor.node, alias.tensor)

    def write(self, value: Node, tensor: Tensor) -> Tensor:
        """Adds writes of `value` to `tensor`, one for each part of a concatenation; returns
        `tensor`."""
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
            concat, strides = whole
            axis = concat.attr
            assert isinstance(axis, int)
            for piece in concat.inputs:
                parts.append((piece, strides, offset))
                offset = offset + piece.shape[axis] * strides[axis]
        return tensor

    def _concatenation(
        self, part: Node, strides: tuple[Dim, ...], is_whole: bool
    ) -> tuple[Node, tuple[Dim, ...]] | None:
        """The concatenation that `part` shows, with its strides if `part` is written with
        `strides`; None if there is none, or it is in memory."""
        node = part
        while node.op in INVERTIBLE and (node is part or node not in self.tensors):
            below = strides_below(node, strides)
            if below is None:
                return None
            (node,), strides = node.inputs, below
        is_new = node not in self.tensors or (is_whole and node is part)
        return (node, strides) if node.op is Op.CONCAT and is_new else None


def same_strides(shape: tuple[Dim, ...], a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether strides are equal for all axes longer than 1."""
    return product(shape) == 0 or all(size == 1 or x == y for size, x, y in zip(shape, a, b))


def alias_of(tensors: Mapping[Node, Tensor], value: Node) -> Alias | None:
    """`value` as an alias of a tensor in memory, or of a member that can be put there; else
    None."""
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


def new_tensor(needs: Materialisation, value: Node, strides: tuple[Dim, ...]) -> Tensor:
    """A tensor for `value`; a copy if the value is in memory already."""
    return Tensor(value, strides, is_copy=value in needs.tensors)


def existing_copy(
    needs: Materialisation, value: Node, strides: tuple[Dim, ...], private: Container[Tensor] = ()
) -> Tensor | None:
    """A copy of `value` with these strides that is written already, but none of `private`; else
    None."""
    copies = (w.tensor for w in needs.writes if w.tensor.node is value and w.strides == strides)
    return next((tensor for tensor in copies if tensor not in private), None)


def opaque_alias(needs: Materialisation, value: Node) -> Alias:
    """The value itself: kernels cannot copy a type that only library calls handle."""
    tensor = needs.tensors[value]
    return Alias(tensor, value.shape, tensor.strides, 0)
