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

import operator
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from hemstitch.capture.effects import drop_unread
from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.traced_nodes import arguments_of, is_recomputed, is_tensor, name_of, value_of
from hemstitch.joint.axis_propagation import (
    ATTENTION,
    Parts,
    added_up,
    has_known_sizes,
    is_reshape,
    parts_for,
    seen_in,
    shape_of,
)
from hemstitch.joint.slices import Region
from hemstitch.joint.zero_propagation import is_zero, zero_where_all, zero_wherever

aten = torch.ops.aten

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", ATTENTION)
MAX_SHARE = 0.5  # of the lines; to compute more of them is no reason to cut a tensor


def eliminate_dead_rows(graph: Graph) -> None:
    """Change `graph`, one of AOTAutograd's."""
    needed = _NeededRows()
    needed.look(graph)
    if any(name_of(node) in PRODUCTS for node in (*needed.parts, *needed.sums)):
        _Rewriting(needed).run(graph)
        drop_unread(graph)


# --- what there is


@dataclass(slots=True)
class _NeededRows:
    """`zeros`: a tensor is zero outside this region. `parts`: of a tensor only this is made.
    `sums`: what of its operands an operation adds up, as they are zero elsewhere."""

    zeros: dict[Node, Region] = field(default_factory=dict)
    parts: dict[Node, Region] = field(default_factory=dict)
    sums: dict[Node, Parts] = field(default_factory=dict)

    def look(self, graph: Graph) -> None:
        for node in graph.nodes:
            region = self._zero_outside(node)
            if region is not None:
                self.zeros[node] = region
        wanted: dict[Node, Region | None] = {}  # None: the whole tensor
        for node in reversed(graph.nodes):
            for operand, region in self._operands(node, wanted.get(node)).items():
                if wanted.setdefault(operand, region) != region:
                    wanted[operand] = None
        self.parts = {n: part for n, part in self.parts.items() if self._is_made(n, part)}

    def _is_made(self, node: Node, region: Region) -> bool:
        """One of several results is made in part where all of them are."""
        is_whole = node.target is not operator.getitem or _is_gradient_of_queries(node)
        return is_whole or self.parts.get(arguments_of(node)[0]) == region

    def _operands(self, node: Node, wanted: Region | None) -> Parts:
        """What of its operands it takes to give of `node` what is wanted."""
        region = self.zeros.get(node, wanted)
        parts = None if region is None else _parts_for(node, region)
        if region is not None and parts is not None:
            self.parts[node] = region
            return parts
        whole = dict.fromkeys(node.all_input_nodes)
        cut = _cut(node)
        if cut is not None:
            return {**whole, arguments_of(node)[0]: cut}
        sums = self._sums_of(node)
        if sums is not None:
            self.sums[node] = sums
            return sums
        return whole

    def _sums_of(self, node: Node) -> Parts | None:
        candidates = (
            added_up(node, operand, self.zeros[operand])
            for operand in node.all_input_nodes
            if operand in self.zeros
        )
        return next((sums for sums in candidates if sums is not None), None)

    def _zero_outside(self, node: Node) -> Region | None:
        if node.op != "call_function":
            return None
        placed = _placed(node)
        if placed is not None:
            return placed
        if _is_gradient_of_queries(node):
            attention = arguments_of(node)[0]
            region = self.zeros.get(arguments_of(attention)[0])
            return None if self._sums_of(attention) is None else region
        for operand in zero_wherever(node):
            region = self._seen_in(node, operand)
            if region is not None:
                return region
        regions = {self._seen_in(node, operand) for operand in zero_where_all(node)}
        return regions.pop() if len(regions) == 1 else None

    def _seen_in(self, node: Node, operand: Node) -> Region | None:
        region = self.zeros.get(operand)
        return None if region is None else seen_in(node, operand, region)


def _parts_for(node: Node, region: Region) -> Parts | None:
    if _placed(node) is not None:
        return {_source(node): None}
    if _is_gradient_of_queries(node):
        return dict.fromkeys(node.all_input_nodes)
    if node.target is operator.getitem:
        (results, _) = arguments_of(node)
        return None if parts_for(results, region) is None else {results: region}
    return parts_for(node, region)


def _is_gradient_of_queries(node: Node) -> bool:
    """It has as many rows as the gradient that attention's backward is given."""
    if node.target is not operator.getitem:
        return False
    results, number = arguments_of(node)
    return number == 0 and name_of(results) == f"{ATTENTION}_backward"


def _cut(node: Node) -> Region | None:
    """The part of its operand that an operation gives, if it cuts one out."""
    match name_of(node), arguments_of(node):
        case "select", (_, axis, index):
            return _region(node, _source(node), axis, index)
        case "slice", (_, axis, start, _):
            return _region(node, _source(node), axis, start)
    return None


def _placed(node: Node) -> Region | None:
    """Where an operation puts its source, among zeros."""
    match name_of(node), arguments_of(node):
        case "select_scatter", (zeros, _, axis, index) if is_zero(zeros):
            return _region(node, node, axis, index)
        case ("slice_scatter", (zeros, _, axis, start, _)) if is_zero(zeros):
            return _region(node, node, axis, start)
        case ("slice_scatter", (zeros, _, axis, start, _, 1)) if is_zero(zeros):
            return _region(node, node, axis, start)
        case "select_backward", (_, _, axis, index):
            return _region(node, node, axis, index)
        case "slice_backward", (_, _, axis, start, _, 1):
            return _region(node, node, axis, start)
    return None


def _source(node: Node) -> Node:
    """What is cut, or placed."""
    first, *rest = arguments_of(node)
    source: Node = rest[0] if name_of(node).endswith("_scatter") else first
    return source


def _region(node: Node, whole: Node, axis: int, start: int | Node | None) -> Region | None:
    """From `start` on; `node` says how many. None where only a call knows."""
    if is_recomputed(node) or not has_known_sizes(node) or isinstance(start, Node):
        return None
    shape, first = shape_of(whole), start or 0
    axis %= len(shape)
    first += shape[axis] if first < 0 else 0
    part = shape_of(node if node is not whole else _source(node))
    length = part[axis] if len(part) == len(shape) else 1
    if first < 0 or not 0 < length <= MAX_SHARE * shape[axis]:
        return None
    return Region(axis, shape[axis], first, length)


# --- what there is instead


class _Rewriting:
    """`small`: the parts that are made; `whole`: these among zeros; `cuts`: parts of what is made
    as a whole; `new`: what takes the place of a node."""

    def __init__(self, needed: _NeededRows) -> None:
        self.needed = needed
        self.small: dict[Node, Node] = {}
        self.whole: dict[Node, Node] = {}
        self.cuts: dict[tuple[Node, Region], Node] = {}
        self.new: dict[Node, Node] = {}

    def run(self, graph: Graph) -> None:
        for node in [*graph.nodes]:
            if node in self.needed.parts:
                self.small[node] = self._part(node, self.needed.parts[node])
            elif node in self.needed.sums:
                self.new[node] = self._made_of(node, self.needed.sums[node])
            elif self._cuts_a_part(node):
                self.new[node] = self._cut(node)
            else:
                self._read_whole(node)
        for old, replacement in self.new.items():
            if is_tensor(old):
                replacement.meta["val"] = value_of(old)  # it lies as that did, for whoever gets it
            old.replace_all_uses_with(replacement)

    def _part(self, node: Node, region: Region) -> Node:
        shape = region.shape(shape_of(node))
        if _placed(node) is not None:
            source = self._operand(node, _source(node), None)
            return call_before(node, aten.reshape.default, source, shape)
        parts = _parts_for(node, region)
        assert parts is not None
        if is_reshape(node) or name_of(node) in ("squeeze", "expand"):
            ((operand, part),) = parts.items()
            whole = self._operand(node, operand, part)
            target = node.target if name_of(node) == "expand" else aten.reshape.default
            return call_before(node, target, whole, shape)
        return self._made_of(node, parts)

    def _made_of(self, node: Node, parts: Parts) -> Node:
        operands = {operand: self._operand(node, operand, part) for operand, part in parts.items()}
        arguments, keywords = map_arg((node.args, node.kwargs), operands.__getitem__)
        return call_before(node, node.target, *arguments, **keywords)

    def _cuts_a_part(self, node: Node) -> bool:
        cut = _cut(node)
        return cut is not None and self.needed.parts.get(_source(node)) == cut

    def _cut(self, node: Node) -> Node:
        part, (_, axis, *_) = self.small[_source(node)], arguments_of(node)
        how = (0,) if name_of(node) == "select" else ()
        return call_before(node, node.target, part, axis, *how)

    def _read_whole(self, node: Node) -> None:
        for operand in node.all_input_nodes:
            if operand in self.needed.parts:
                node.replace_input_with(operand, self._operand(node, operand, None))

    def _operand(self, at: Node, node: Node, region: Region | None) -> Node:
        """This part of `node`, for one that is made before `at`."""
        part = self.needed.parts.get(node)
        if region is not None and part == region:
            return self.small[node]
        whole = self.new.get(node, node)
        if part is not None:
            whole = self.whole.get(node) or part.among_zeros(at, self.small[node], shape_of(node))
            whole.meta["val"] = value_of(node)
            self.whole[node] = whole
        if region is None:
            return whole
        if (node, region) not in self.cuts:
            self.cuts[node, region] = region.cut(at, whole)
        return self.cuts[node, region]
