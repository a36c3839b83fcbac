"""Online softmax: rows that are too long for registers are read once, block by block
(FlashAttention).

A matmul whose K is such a row becomes a reduction over the lanes. Let its left operand be linear in
e = exp(t - max t). Then e may use the running maximum: when the maximum grows, the accumulators are
rescaled by exp(old - new). Sums of e are treated alike. Factors that are constant along the row,
such as 1 / sum e, are not known in time; they are applied after the matmul. That is a
reassociation: see docs/design/attention.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType
from hemstitch.machine.gpu_numbers import GPU
from hemstitch.stitching.group import (
    Group,
    Write,
    computed_below,
    is_member,
    reductions_below,
    reductions_of,
)


def is_long(row: Dim) -> bool:
    """Whether a row does not fit into registers, or may not."""
    return not isinstance(row, int) or row > GPU.register_columns


def with_online_softmax(group: Group) -> Group:
    """`group` with its long rows rewritten for a single pass; the same group where there are
    none."""
    matmuls = [node for node in group.members if node.op is Op.DOT]
    if not any(is_long(size) for p in matmuls for size in (p.shape[-1], p.inputs[0].shape[-1])):
        return group
    build = Builder()
    factors = _OnlineFactors(build, group)
    replaced: dict[Node, Node] = {}
    for node in matmuls:
        left = node.inputs[0]
        linear = (factors.split(left) or factors.scaled(left)) if is_long(left.shape[-1]) else None
        if linear is not None and linear.row_factors:
            replaced[node] = _factored(build, node, linear)
    changed = _rewritten(build, group, replaced) if replaced else group
    along_lanes = frozenset(
        n for n in changed.members if n.op is Op.DOT and _contracts_long_row(n, changed)
    )
    changed = replace(changed, k_along_lanes=along_lanes)
    return replace(changed, running_maximum=_running_maxima(factors, changed))


def _contracts_long_row(matmul: Node, group: Group) -> bool:
    """Whether K is a long row that a matmul, or exponentials relative to its maximum, computes."""
    left = matmul.inputs[0]
    evaluated = computed_below(left, frozenset(group.members), reductions_of(group))
    is_computed = any(node.op is Op.DOT or _maximum_of(node) is not None for node in evaluated)
    return is_computed and is_long(left.shape[-1])


def _running_maxima(factors: _OnlineFactors, group: Group) -> Mapping[Node, Node]:
    """For each sum that may use a running maximum, that maximum."""
    maxima: dict[Node, Node] = {}
    for node in group.members:
        last = node.inputs[0].type.rank - 1 if node.inputs else 0
        if node in group.k_along_lanes or (node.op is Op.SUM and node.attr == (last,)):
            parts = factors.split(node.inputs[0])
            if parts is not None and parts.maximum is not None and not parts.row_factors:
                maxima[node] = parts.maximum
    return maxima


# --- values that are linear in e


_VIEWS = (Op.CAST, Op.RESHAPE, Op.PERMUTE, Op.BROADCAST)


@dataclass(frozen=True, slots=True)
class _Linear:
    """`inner` times factors that are constant along the row: (MUL, DIV or WHERE, the factor with a
    last axis of size 1). `maximum`: the one that e is relative to; None where there is no e."""

    inner: Node
    row_factors: tuple[tuple[Op, Node], ...]
    maximum: Node | None


def _maximum_of(node: Node) -> Node | None:
    """The maximum m, if `node` is exp(t - m) and m the maximum of t along its last axis."""
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
    """Splits values of a group into linear parts and row factors."""

    build: Builder
    group: Group
    # Memoised results:
    _scaled: dict[Node, _Linear] = field(default_factory=dict)
    _splits: dict[Node, _Linear | None] = field(default_factory=dict)
    _rows: dict[Node, Node | None] = field(default_factory=dict)

    @property
    def in_memory(self) -> Container[Node]:
        """The nodes that the group reads."""
        return self.group.reads

    def scaled(self, node: Node) -> _Linear:
        """`node` as an inner value and row factors that depend on a reduction of the group, without
        e: as in s / sum s. The inner value may be much larger than `node`, so it is not cast to
        f16."""
        if node not in self._scaled:
            self._scaled[node] = self._first_scaled(node)
        return self._scaled[node]

    def _first_scaled(self, node: Node) -> _Linear:
        match node.op:
            case op if op in _VIEWS and node.type.dtype is not DType.F16:
                return self._of_view(node, self.scaled(node.inputs[0])) or _Linear(node, (), None)
            case Op.MUL | Op.DIV:
                for position, factor_position in (
                    ((0, 1),) if node.op is Op.DIV else ((0, 1), (1, 0))
                ):
                    row = self._row(node.inputs[factor_position])
                    if row is not None and self._is_reduced(node.inputs[factor_position]):
                        linear = self.scaled(node.inputs[position])
                        return replace(linear, row_factors=(*linear.row_factors, (node.op, row)))
        return _Linear(node, (), None)

    def _is_reduced(self, factor: Node) -> bool:
        members = frozenset(self.group.members)
        return bool(reductions_below([factor], members, reductions_of(self.group)))

    def split(self, node: Node) -> _Linear | None:
        """`node` as a value linear in e and row factors; None if it is not linear in e."""
        if node not in self._splits:
            self._splits[node] = self._first_split(node)
        return self._splits[node]

    def _first_split(self, node: Node) -> _Linear | None:
        if node in self.in_memory:
            return None
        maximum = _maximum_of(node)
        if maximum is not None:
            is_computed = not any(x in self.in_memory for x in (maximum, node.inputs[0]))
            return _Linear(node, (), maximum) if is_computed else None
        match node.op:
            case op if op in _VIEWS:
                return self._split_view(node)
            case Op.MUL | Op.DIV:
                return self._split_scaled(node)
            case Op.WHERE:
                return self._split_choice(node)
            case _:
                return None

    def _split_view(self, node: Node) -> _Linear | None:
        linear = self.split(node.inputs[0])
        return None if linear is None else self._of_view(node, linear)

    def _of_view(self, node: Node, linear: _Linear) -> _Linear | None:
        """The parts of a view or cast, given the parts of its operand; None where it changes the
        last axis."""
        (source,) = node.inputs
        if not (source.type.dtype.is_float and node.type.dtype.is_float and _keeps_last(node)):
            return None
        row_factors = tuple((op, self._row_of_view(node, row)) for op, row in linear.row_factors)
        return _Linear(_with_inputs(self.build, node, (linear.inner,)), row_factors, linear.maximum)

    def _split_scaled(self, node: Node) -> _Linear | None:
        for position, factor_position in ((0, 1),) if node.op is Op.DIV else ((0, 1), (1, 0)):
            linear = self.split(node.inputs[position])
            if linear is None:
                continue
            factor = node.inputs[factor_position]
            row = self._row(factor)
            if row is not None:
                return replace(linear, row_factors=(*linear.row_factors, (node.op, row)))
            return replace(linear, inner=_with_inputs(self.build, node, (linear.inner, factor)))
        return None

    def _split_choice(self, node: Node) -> _Linear | None:
        """WHERE with zero in one branch: a mask, or rows without elements."""
        condition, *values = node.inputs
        for position, zero_position in ((0, 1), (1, 0)):
            zero = values[zero_position]
            linear = self.split(values[position])
            if linear is None or zero.op is not Op.CONSTANT or zero.attr != 0:
                continue
            row = self._row(condition)
            if row is not None:
                condition_row = row if position == 0 else self.build.make(Op.NOT, row)
                return replace(linear, row_factors=(*linear.row_factors, (Op.WHERE, condition_row)))
            inputs = (linear.inner, zero) if position == 0 else (zero, linear.inner)
            return replace(linear, inner=_with_inputs(self.build, node, (condition, *inputs)))
        return None

    def _row(self, node: Node) -> Node | None:
        """`node` with a last axis of size 1, if it is constant along that axis; else None."""
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
        is_computed = is_view or is_elementwise(node.op) or node.op is Op.CONSTANT
        rows = map(self._row, node.inputs if is_computed and node not in self.in_memory else ())
        known_rows = [row for row in rows if row is not None]
        if not is_computed or len(known_rows) < len(node.inputs):
            return None
        if is_view:
            return self._row_of_view(node, known_rows[0])
        return _with_inputs(self.build, node, known_rows, shape)

    def _row_of_view(self, view: Node, row: Node) -> Node:
        """The view or cast, applied to an operand with a last axis of size 1."""
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
    """Whether the view's last axis is that of its operand."""
    (source,) = view.inputs
    if view.op is Op.PERMUTE:
        assert isinstance(view.attr, tuple)
        return view.attr[-1] == source.type.rank - 1
    return source.type.rank > 0 and source.shape[-1] == view.shape[-1]


def _with_inputs(
    build: Builder, node: Node, inputs: Iterable[Node], shape: Sequence[Dim] | None = None
) -> Node:
    """The same operation on other operands."""
    type_ = replace(node.type, shape=node.shape if shape is None else tuple(shape))
    return build.make(node.op, *inputs, attr=node.attr, type=type_)


# --- the rewritten group


def _factored(build: Builder, matmul: Node, linear: _Linear) -> Node:
    """The matmul of the inner part, followed by its row factors."""
    result = build.dot(linear.inner, matmul.inputs[1])
    for op, row in linear.row_factors:
        if op is Op.WHERE:
            zero = build.constant(0.0, result.type.dtype, result.shape)
            result = build.make(op, build.broadcast(row, result.shape), result, zero)
        else:
            factor = build.broadcast(build.cast(row, result.type.dtype), result.shape)
            result = build.make(op, result, factor)
    return result


def _rewritten(build: Builder, group: Group, replaced: dict[Node, Node]) -> Group:
    """The group with some nodes replaced."""
    replacements = dict(replaced)
    for node in _in_order([write.value for write in group.writes], group):
        inputs = tuple(replacements.get(x, x) for x in node.inputs)
        if node not in replacements and inputs != node.inputs:
            replacements[node] = _with_inputs(build, node, inputs)
    values = [replacements.get(write.value, write.value) for write in group.writes]
    writes = (Write(v, w.tensor, w.strides, w.offset) for v, w in zip(values, group.writes))
    members = (n for n in _in_order(values, group) if is_member(n) and n not in group.reads)
    return replace(group, members=tuple(members), writes=tuple(writes))


def _in_order(values: Iterable[Node], group: Group) -> list[Node]:
    """The nodes between the group's reads and `values`, operands first."""
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
