"""Rows too long to be kept are walked once, block by block (FlashAttention).

A product that adds up along such a row becomes one over the lanes, a reduction among others. Where
its left operand is linear in e = exp(t - max t), the maximum so far will do for e, since what was
added up before can be multiplied by exp(old - new) when it grows; sums of e alike. Factors that are
the same all along the row, 1 / sum e for one, then cannot be known yet and come after the product.
That is a reassociation: see docs/design/attention.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType
from hemstitch.stitching.group import (
    Group,
    Write,
    computed_below,
    is_member,
    reductions_below,
    reductions_of,
)

LONGEST_ROW = 256  # columns that stay in registers beside 15 more rows, with what becomes of them


def is_long(row: Dim) -> bool:
    """It does not stay in registers, or may not."""
    return not isinstance(row, int) or row > LONGEST_ROW


def with_online_softmax(group: Group) -> Group:
    """The group with its long rows to be walked once, or the same one where it has none."""
    products = [node for node in group.members if node.op is Op.DOT]
    if not any(is_long(size) for p in products for size in (p.shape[-1], p.inputs[0].shape[-1])):
        return group
    build = Builder()
    factors = _OnlineFactors(build, group)
    replaced: dict[Node, Node] = {}
    for node in products:
        left = node.inputs[0]
        found = (factors.split(left) or factors.scaled(left)) if is_long(left.shape[-1]) else None
        if found is not None and found.behind:
            replaced[node] = _factored(build, node, found)
    changed = _rewritten(build, group, replaced) if replaced else group
    along = frozenset(n for n in changed.members if n.op is Op.DOT and _is_along(n, changed))
    changed = replace(changed, along=along)
    return replace(changed, follows=_follows(factors, changed))


def _is_along(product: Node, group: Group) -> bool:
    """It adds up what is made along a long row, by a product or relative to its maximum."""
    left = product.inputs[0]
    inside = computed_below(left, frozenset(group.members), reductions_of(group))
    is_made = any(node.op is Op.DOT or _maximum_of(node) is not None for node in inside)
    return is_made and is_long(left.shape[-1])


def _follows(factors: _OnlineFactors, group: Group) -> Mapping[Node, Node]:
    """Each sum that can be counted from a maximum so far, and that maximum."""
    found: dict[Node, Node] = {}
    for node in group.members:
        last = node.inputs[0].type.rank - 1 if node.inputs else 0
        if node in group.along or (node.op is Op.SUM and node.attr == (last,)):
            parts = factors.split(node.inputs[0])
            if parts is not None and parts.maximum is not None and not parts.behind:
                found[node] = parts.maximum
    return found


# --- what is linear in e


_VIEWS = (Op.CAST, Op.RESHAPE, Op.PERMUTE, Op.BROADCAST)


@dataclass(frozen=True, slots=True)
class _Linear:
    """`inside` times factors that are the same all along the row: (MUL, DIV or WHERE, the factor,
    with a last axis of size 1). `maximum`: what e is relative to; None where there is no e."""

    inside: Node
    behind: tuple[tuple[Op, Node], ...]
    maximum: Node | None


def _maximum_of(node: Node) -> Node | None:
    """m, if `node` is exp(t - m) and m the maximum of t along its last axis."""
    if node.op is not Op.EXP or node.inputs[0].op is not Op.SUB:
        return None
    shifted, wide = node.inputs[0].inputs
    maximum = wide
    for op in (Op.BROADCAST, Op.RESHAPE):
        if maximum.op is not op:
            return None
        (maximum,) = maximum.inputs
    is_row = wide.inputs[0].shape == (*shifted.shape[:-1], 1)
    is_maximum = maximum.op is Op.MAX and maximum.inputs[0] is shifted
    return maximum if is_row and is_maximum and maximum.attr == (shifted.type.rank - 1,) else None


@dataclass(frozen=True, slots=True)
class _OnlineFactors:
    """Takes values of a group apart."""

    build: Builder
    group: Group
    # What was looked at before: several may read it.
    _scaled: dict[Node, _Linear] = field(default_factory=dict)
    _splits: dict[Node, _Linear | None] = field(default_factory=dict)
    _rows: dict[Node, Node | None] = field(default_factory=dict)

    @property
    def in_memory(self) -> Container[Node]:
        """Where the group begins."""
        return self.group.reads

    def scaled(self, node: Node) -> _Linear:
        """`node` as what is scaled by factors of rows that a reduction of the group is part of, and
        these factors: no e, as in s / sum s. What is inside may be much larger than `node`, so
        that it is not cast to a type with a smaller range."""
        if node not in self._scaled:
            self._scaled[node] = self._first_scaled(node)
        return self._scaled[node]

    def _first_scaled(self, node: Node) -> _Linear:
        match node.op:
            case op if op in _VIEWS and node.type.dtype is not DType.F16:
                return self._of_view(node, self.scaled(node.inputs[0])) or _Linear(node, (), None)
            case Op.MUL | Op.DIV:
                for position, other in ((0, 1),) if node.op is Op.DIV else ((0, 1), (1, 0)):
                    row = self._row(node.inputs[other])
                    if row is not None and self._is_reduced(node.inputs[other]):
                        found = self.scaled(node.inputs[position])
                        return replace(found, behind=(*found.behind, (node.op, row)))
        return _Linear(node, (), None)

    def _is_reduced(self, factor: Node) -> bool:
        members = frozenset(self.group.members)
        return bool(reductions_below([factor], members, reductions_of(self.group)))

    def split(self, node: Node) -> _Linear | None:
        """`node` as what is linear in e and factors of rows; None if it is not linear in it."""
        if node not in self._splits:
            self._splits[node] = self._first_split(node)
        return self._splits[node]

    def _first_split(self, node: Node) -> _Linear | None:
        if node in self.in_memory:
            return None
        maximum = _maximum_of(node)
        if maximum is not None:
            is_made = not any(x in self.in_memory for x in (maximum, node.inputs[0]))
            return _Linear(node, (), maximum) if is_made else None
        match node.op:
            case op if op in _VIEWS:
                return self._split_view(node)
            case Op.MUL | Op.DIV:
                return self._split_product(node)
            case Op.WHERE:
                return self._split_choice(node)
            case _:
                return None

    def _split_view(self, node: Node) -> _Linear | None:
        found = self.split(node.inputs[0])
        return None if found is None else self._of_view(node, found)

    def _of_view(self, node: Node, found: _Linear) -> _Linear | None:
        """What a view (or a cast) is made of, where its operand is made of `found`."""
        (source,) = node.inputs
        if not (source.type.dtype.is_float and node.type.dtype.is_float and _keeps_last(node)):
            return None
        behind = tuple((op, self._row_of_view(node, row)) for op, row in found.behind)
        return _Linear(_remade(self.build, node, (found.inside,)), behind, found.maximum)

    def _split_product(self, node: Node) -> _Linear | None:
        for position, other in ((0, 1),) if node.op is Op.DIV else ((0, 1), (1, 0)):
            found = self.split(node.inputs[position])
            if found is None:
                continue
            factor = node.inputs[other]
            row = self._row(factor)
            if row is not None:
                return replace(found, behind=(*found.behind, (node.op, row)))
            return replace(found, inside=_remade(self.build, node, (found.inside, factor)))
        return None

    def _split_choice(self, node: Node) -> _Linear | None:
        """Zero where a condition says so: a mask, or rows without any element."""
        condition, *values = node.inputs
        for position, other in ((0, 1), (1, 0)):
            zero = values[other]
            found = self.split(values[position])
            if found is None or zero.op is not Op.CONSTANT or zero.attr != 0:
                continue
            row = self._row(condition)
            if row is not None:
                kept = row if position == 0 else self.build.make(Op.NOT, row)
                return replace(found, behind=(*found.behind, (Op.WHERE, kept)))
            inputs = (found.inside, zero) if position == 0 else (zero, found.inside)
            return replace(found, inside=_remade(self.build, node, (condition, *inputs)))
        return None

    def _row(self, node: Node) -> Node | None:
        """`node` with a last axis of size 1, if it is the same all along that; else None."""
        if node not in self._rows:
            self._rows[node] = self._first_row(node)
        return self._rows[node]

    def _first_row(self, node: Node) -> Node | None:
        shape = (*node.shape[:-1], 1)
        if node.shape == shape:
            return node
        if node.op is Op.BROADCAST and node.inputs[0].shape[-1] == 1:
            return self.build.broadcast(node.inputs[0], shape)
        is_view = node.op in (Op.RESHAPE, Op.PERMUTE, Op.BROADCAST) and _keeps_last(node)
        is_made = is_view or is_elementwise(node.op) or node.op is Op.CONSTANT
        rows = map(self._row, node.inputs if is_made and node not in self.in_memory else ())
        found = [row for row in rows if row is not None]
        if not is_made or len(found) < len(node.inputs):
            return None
        if is_view:
            return self._row_of_view(node, found[0])
        return _remade(self.build, node, found, shape)

    def _row_of_view(self, view: Node, row: Node) -> Node:
        """What the view (or the cast) makes of its operand, of which there is only this `row`."""
        shape = (*view.shape[:-1], 1)
        match view.op:
            case Op.RESHAPE:
                return self.build.reshape(row, shape)
            case Op.BROADCAST:
                return self.build.broadcast(row, shape)
            case Op.PERMUTE:
                assert isinstance(view.attr, tuple)
                order = [axis for axis in view.attr if isinstance(axis, int)]
                return self.build.permute(row, order)
            case _:
                return row


def _keeps_last(view: Node) -> bool:
    """Its last axis is that of its operand."""
    (source,) = view.inputs
    if view.op is Op.PERMUTE:
        assert isinstance(view.attr, tuple)
        return view.attr[-1] == source.type.rank - 1
    return source.type.rank > 0 and source.shape[-1] == view.shape[-1]


def _remade(
    build: Builder, node: Node, inputs: Iterable[Node], shape: Sequence[Dim] | None = None
) -> Node:
    """The same operation on other operands."""
    type_ = replace(node.type, shape=node.shape if shape is None else tuple(shape))
    return build.make(node.op, *inputs, attr=node.attr, type=type_)


# --- the group with other products


def _factored(build: Builder, product: Node, parts: _Linear) -> Node:
    """The product of the part inside, times what is behind it."""
    result = build.dot(parts.inside, product.inputs[1])
    for op, row in parts.behind:
        if op is Op.WHERE:
            zero = build.constant(0.0, result.type.dtype, result.shape)
            result = build.make(op, build.broadcast(row, result.shape), result, zero)
        else:
            factor = build.broadcast(build.cast(row, result.type.dtype), result.shape)
            result = build.make(op, result, factor)
    return result


def _rewritten(build: Builder, group: Group, replaced: dict[Node, Node]) -> Group:
    """The group with other nodes for some."""
    made = dict(replaced)
    for node in _in_order([write.value for write in group.writes], group):
        inputs = tuple(made.get(x, x) for x in node.inputs)
        if node not in made and inputs != node.inputs:
            made[node] = _remade(build, node, inputs)
    values = [made.get(write.value, write.value) for write in group.writes]
    writes = (Write(v, w.tensor, w.strides, w.offset) for v, w in zip(values, group.writes))
    members = (n for n in _in_order(values, group) if is_member(n) and n not in group.reads)
    return replace(group, members=tuple(members), writes=tuple(writes))


def _in_order(values: Iterable[Node], group: Group) -> list[Node]:
    """What the group makes of what it reads, operands first."""
    order: dict[Node, None] = {}
    work = [(value, False) for value in values]
    while work:
        node, inputs_done = work.pop()
        if node in order:
            continue
        if inputs_done or node in group.reads:
            order[node] = None
        else:
            work.append((node, True))
            work.extend((operand, False) for operand in node.inputs)
    return list(order)
