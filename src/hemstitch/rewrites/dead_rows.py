"""Only those lines of a tensor are computed that somebody reads.

A classifier of images or of texts reads one word of what its last layer gives, and the layer works
on all of them; but of most operations a part of the result can be made alone. From where a part is
cut out, upwards, an operation whose readers all want the same part makes no more than that. What
attention reads of the other words, their keys and values, it reads as a whole.

Backward, the gradient of a part is that part among zeros. What is zero wherever its gradient is has
only that part computed, and what adds up along the zeros adds up the part.

Zero times what is not finite is zero then, not NaN, in lines that no result depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import AttentionBackward, Strides, StructuredCall
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, Node, Op, Range, operation_of, toposort
from hemstitch.ir.ops import is_view
from hemstitch.ir.structured import result_types
from hemstitch.ir.types import TensorType, contiguous_strides
from hemstitch.rewrites.algebra import constant_value, is_constant
from hemstitch.rewrites.axes import (
    added_up,
    has_known_sizes,
    operands_of,
    padded_axes,
    parts_for,
    seen_in,
    shape_of,
    sliced_axes,
    zero_where_all,
    zero_wherever,
)
from hemstitch.rewrites.engine import substitute
from hemstitch.rewrites.row_regions import Region

Parts = Sequence[Region | None]  # of each operand; None: the whole
MAX_SHARE = 0.5  # of the lines; to compute more of them is no reason to cut a tensor


def eliminate_dead_rows(graph: Graph, builder: Builder) -> Graph:
    """`graph` itself where no matmul or attention has less to do."""
    replacements = live_rows(graph, builder)
    return substitute(graph, replacements, builder) if replacements else graph


def live_rows(graph: Graph, builder: Builder) -> dict[Node, Node]:
    """What takes the place of each value of `graph`: of one of which a part is read, that part
    among zeros."""
    nodes = toposort(graph.roots)
    needed = _NeededRows()
    needed.look(nodes, graph.roots)
    changed = (*needed.parts, *needed.sums)
    if not any(operation_of(node) is not None for node in changed):
        return {}
    return _Rewriting(needed, builder).replacements(nodes)


# --- what there is


@dataclass(slots=True)
class _NeededRows:
    """`zeros`: a tensor is zero outside this region. `parts`: of a tensor only this is computed.
    `sums`: what of its operands an operation adds up, as they are zero elsewhere."""

    zeros: dict[Node, Region] = field(default_factory=dict)
    parts: dict[Node, Region] = field(default_factory=dict)
    sums: dict[Node, Parts] = field(default_factory=dict)

    def look(self, nodes: Sequence[Node], roots: Iterable[Node]) -> None:
        """`nodes`: producers before consumers."""
        for node in nodes:
            region = self._zero_outside(node)
            if region is not None:
                self.zeros[node] = region
        wanted: dict[Node, Region | None] = dict.fromkeys(roots)  # None: the whole tensor
        for node in reversed(nodes):
            if node.op is not Op.RESULT or operation_of(node) is not None:
                self._look_at(node, wanted)
            else:
                wanted[node.inputs[0]] = None
        self._agree_on_results(nodes)

    def _look_at(self, node: Node, wanted: dict[Node, Region | None]) -> None:
        if node.inputs and node.op is not Op.RESULT and _is_structured(node):
            return  # its results have said what it reads
        for operand, region in zip(operands_of(node), self._operands(node, wanted.get(node))):
            if wanted.setdefault(operand, region) != region:
                wanted[operand] = None

    def _agree_on_results(self, nodes: Sequence[Node]) -> None:
        """One of several results is computed in part where all of them are."""
        results: dict[Node, list[Node]] = {}
        for node in nodes:
            if node.op is Op.RESULT and node.inputs[0].op is Op.ATTENTION:
                results.setdefault(node.inputs[0], []).append(node)
        for siblings in results.values():
            regions = [self.parts.get(node) for node in siblings]
            if any(region != regions[0] for region in regions):
                for node in siblings:
                    self.parts.pop(node, None)

    def _operands(self, node: Node, wanted: Region | None) -> Parts:
        """What of its operands it takes to give of `node` what is wanted."""
        region = self.zeros.get(node, wanted)
        parts = None if region is None else self.parts_of(node, region)
        if region is not None and parts is not None:
            self.parts[node] = region
            return parts
        cut = _cut(node)
        if cut is not None:
            return [cut]
        sums = self._sums_of(node)
        if sums is not None:
            self.sums[node] = sums
            return sums
        return [None] * len(operands_of(node))

    def parts_of(self, node: Node, region: Region) -> Parts | None:
        if _placed(node) is not None:
            return [None] * len(node.inputs)
        if _is_gradient_of_queries(node):
            return self._sums_of(node)
        return parts_for(node, region)

    def _sums_of(self, node: Node) -> Parts | None:
        candidates = (
            added_up(node, place, self.zeros[operand])
            for place, operand in enumerate(operands_of(node))
            if operand in self.zeros
        )
        return next((sums for sums in candidates if sums is not None), None)

    def _zero_outside(self, node: Node) -> Region | None:
        placed = _placed(node)
        if placed is not None:
            return placed
        if _is_gradient_of_queries(node):
            region = self.zeros.get(operands_of(node)[0])
            return None if self._sums_of(node) is None else region
        if not has_known_sizes(node):
            return None
        for place in zero_wherever(node):
            region = self._seen_in(node, place)
            if region is not None:
                return region
        regions = {self._seen_in(node, place) for place in zero_where_all(node)}
        return regions.pop() if len(regions) == 1 else None

    def _seen_in(self, node: Node, place: int) -> Region | None:
        region = self.zeros.get(operands_of(node)[place])
        return None if region is None else seen_in(node, place, region)


def _is_structured(call: Node) -> bool:
    return isinstance(call.attr, StructuredCall)


def _is_gradient_of_queries(node: Node) -> bool:
    """It has as many rows as the gradient that attention's backward is given."""
    return isinstance(operation_of(node), AttentionBackward) and node.attr == 0


def _cut(node: Node) -> Region | None:
    """The part of its operand that a slice gives, if that is along one axis."""
    if node.op is not Op.SLICE or not has_known_sizes(node):
        return None
    axes = sliced_axes(node)
    if len(axes) != 1:
        return None
    [axis] = axes
    whole, part = shape_of(node.inputs[0]), shape_of(node)
    assert isinstance(node.attr, tuple)
    first = node.attr[axis]
    assert isinstance(first, Range)
    is_plain = isinstance(first.start, int) and (first.step == 1 or part[axis] == 1)
    return _region(axis, whole, first.start, part[axis]) if is_plain else None


def _placed(node: Node) -> Region | None:
    """Where a pad, or a concatenation, puts its source among zeros, if that is along one axis."""
    if not has_known_sizes(node):
        return None
    source = _source(node)
    if source is None:
        return None
    whole = shape_of(node)
    assert isinstance(node.attr, tuple | int)
    if isinstance(node.attr, int):
        before = node.inputs[: node.inputs.index(source)]
        first = sum(shape_of(part)[node.attr] for part in before)
        return _region(node.attr, whole, first, shape_of(source)[node.attr])
    axes = padded_axes(node)
    if len(axes) != 1:
        return None
    [axis] = axes
    return _region(axis, whole, node.attr[axis], shape_of(source)[axis])


def _source(node: Node) -> Node | None:
    """What is among zeros."""
    if node.op is Op.PAD:
        return node.inputs[0] if is_constant(node.inputs[1], 0) else None
    others = [part for part in node.inputs if not _is_zero(part)]
    return others[0] if node.op is Op.CONCAT and len(others) == 1 else None


def _is_zero(node: Node) -> bool:
    while is_view(node.op) and len(node.inputs) == 1:
        (node,) = node.inputs
    return is_constant(node, 0)


def _region(axis: int, whole: Sequence[int], first: object, length: int) -> Region | None:
    assert isinstance(first, int)
    is_small = 0 < length <= MAX_SHARE * whole[axis]
    return Region(axis, whole[axis], first, length) if is_small else None


# --- what there is instead


@dataclass(slots=True)
class _Rewriting:
    """`small`: the parts that are computed. `new`: what takes the place of a node, of a part that
    among zeros. `calls`: results of calls of parts of their operands."""

    needed: _NeededRows
    builder: Builder
    small: dict[Node, Node] = field(default_factory=dict)
    new: dict[Node, Node] = field(default_factory=dict)
    calls: dict[Node, Sequence[Node | None]] = field(default_factory=dict)

    def replacements(self, nodes: Sequence[Node]) -> dict[Node, Node]:
        for node in nodes:
            if node in self.needed.parts:
                region = self.needed.parts[node]
                self.small[node] = self._part(node, region)
                self.new[node] = region.among_zeros(self.builder, self.small[node], shape_of(node))
            elif node in self.needed.sums:
                self.new[node] = self._computed_of(node, self.needed.sums[node], shape_of(node))
            elif self._cuts_a_part(node):
                self.new[node] = self.small[node.inputs[0]]
            elif node.inputs:
                inputs = [self.new[operand] for operand in node.inputs]
                self.new[node] = self.builder.make(node.op, *inputs, attr=node.attr, type=node.type)
            else:
                self.new[node] = node
        return {old: new for old, new in self.new.items() if old is not new}

    def _cuts_a_part(self, node: Node) -> bool:
        cut = _cut(node)
        return cut is not None and self.needed.parts.get(node.inputs[0]) == cut

    def _part(self, node: Node, region: Region) -> Node:
        shape = region.shape(shape_of(node))
        if _placed(node) is not None:
            source = _source(node)
            assert source is not None
            return self.builder.reshape(self.new[source], shape)
        parts = self.needed.parts_of(node, region)
        assert parts is not None
        return self._computed_of(node, parts, shape)

    def _computed_of(self, node: Node, parts: Parts, shape: Sequence[int]) -> Node:
        operands = [self._operand(x, part) for x, part in zip(operands_of(node), parts)]
        type_ = TensorType(tuple(shape), node.type.dtype)
        if node.op is not Op.RESULT:
            return self._operation(node, operands, type_)
        assert isinstance(node.attr, int)
        results = self.calls.get(node.inputs[0])
        if results is None:
            results = self._call(node.inputs[0], operands, parts)
            self.calls[node.inputs[0]] = results
        result = results[node.attr]
        assert result is not None and result.type == type_
        return result

    def _operation(self, node: Node, operands: Sequence[Node], type_: TensorType) -> Node:
        match node.op:
            case Op.RESHAPE:
                return self.builder.reshape(operands[0], type_.shape)
            case Op.BROADCAST:
                return self.builder.broadcast(operands[0], type_.shape)
        return self.builder.make(node.op, *operands, attr=node.attr, type=type_)

    def _operand(self, node: Node, region: Region | None) -> Node:
        if region is None:
            return self.new[node]
        if self.needed.parts.get(node) == region:
            return self.small[node]
        shape, value = shape_of(node), constant_value(node)
        if value is not None:
            return self.builder.constant(value, node.type.dtype, region.shape(shape))
        return region.cut(self.builder, self.new[node], shape)

    def _call(self, call: Node, operands: Sequence[Node], parts: Parts) -> Sequence[Node | None]:
        """The call of these parts of its operands."""
        assert isinstance(call.attr, StructuredCall)
        types = result_types(call.attr.operation, [operand.type for operand in operands])
        results = tuple(
            None if type_ is None else (type_, contiguous_strides(type_.shape)) for type_ in types
        )
        strides = tuple(
            old if part is None or old is None else _in_the_order_of(old, operand.shape)
            for old, part, operand in zip(call.attr.operand_strides, parts, operands)
        )
        new = replace(call.attr, operand_strides=strides, results=results)
        return self.builder.call(new, operands)


def _in_the_order_of(strides: Strides, shape: tuple[Dim, ...]) -> Strides:
    """Those of a tensor without gaps whose axes are in this order in memory."""
    steps = [step for step in strides if isinstance(step, int)]
    if len(steps) < len(shape):  # only a call knows them
        return contiguous_strides(shape)
    order = sorted(range(len(shape)), key=lambda axis: -steps[axis])
    dense = contiguous_strides(tuple(shape[axis] for axis in order))
    return tuple(dense[order.index(axis)] for axis in range(len(shape)))
