"""What passes along the edges of a graph network is as narrow as it can be.

A layer multiplies what each node has by a matrix of weights, passes it along edges, each with a
factor, and adds up what arrives: A (X W), with a sparse matrix A. (A X) W is the same, and where X
has fewer columns than W, less is read and written for each edge. The product itself is as large as
before. With a bias, A (X W + b) = (A X) W + (A 1) b.

Gradients go along the edges the other way. Where forward has A X, that of the weights needs no sum
by index, since (A^T G)^T X = G^T (A X), nor does that of a bias: the columns of A^T G have the sums
of those of (A 1) G. In which order a product adds up its terms nobody has ever promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.capture.effects import drop_unread
from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.traced_nodes import arguments_of, formulas, is_recomputed, name_of, value_of

aten = torch.ops.aten

TYPES = (torch.float32, torch.float64)  # halves would round what is passed, not what is made of it
OF_SHAPE = ("new_zeros", "zeros_like")  # read nothing of their argument but its shape and type
RANK = 2  # of matrices


@dataclass(frozen=True, slots=True)
class _Edges:
    """A sparse matrix: for each element the line that it reads, the line that it adds to, and its
    factor, one in a line (None: 1)."""

    source: Node
    target: Node
    weight: Node | None

    @property
    def transposed(self) -> _Edges:
        return _Edges(self.target, self.source, self.weight)


@dataclass(frozen=True, slots=True)
class _Passed:
    """`edges` times `dense`, in `rows` lines. `index` and `index_put` take a negative index for one
    from the end: it wraps. The other operations refuse it."""

    edges: _Edges
    dense: Node
    rows: Any
    source_wraps: bool
    target_wraps: bool


@dataclass(frozen=True, slots=True)
class _EdgeMatmul:
    """`left @ right`, with `bias` added to each line."""

    left: Node
    right: Node
    bias: Node | None


def narrow_messages(graph: Graph) -> None:
    """Change `graph`, one of AOTAutograd's."""
    _Narrowed(graph).run()


class _Narrowed:
    """`passed`: what forward has before a product, along which edges it was passed instead, and
    what arrived. `factors`: of edges that passed a bias, those to each line, added up."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.passed: dict[tuple[_Edges, Node | None], Node] = {}
        self.factors: dict[_Edges, Node] = {}

    def run(self) -> None:
        for node in [*self.graph.nodes]:
            found = _passed(node) if node.users else None
            if found is None:
                continue
            if not self._before_product(node, found):
                self._behind_readers(node, found)
            drop_unread(self.graph)

    def _before_product(self, node: Node, found: _Passed) -> bool:
        """A (X W + b) -> (A X) W + (A 1) b"""
        product = _product(found.dense)
        if product is None or not _columns(product.left) < _columns(product.right):
            return False
        key = found.edges, product.left
        if key not in self.passed:
            self.passed[key] = self._pass(node, found, product.left)
        new = call_before(node, aten.mm.default, self.passed[key], product.right)
        if product.bias is not None:
            if found.edges not in self.factors:
                self.factors[found.edges] = self._sum_of_factors(node, found)
            each = call_before(node, aten.mul.Tensor, self.factors[found.edges], product.bias)
            new = call_before(node, aten.add.Tensor, new, each)
        node.replace_all_uses_with(new)
        return True

    def _behind_readers(self, node: Node, found: _Passed) -> None:
        """Whatever reads A G reads something else. If that cannot be, all stays: A G is there."""
        readers = [*_readers_of_matrix(node)]
        others = [self._without(node, found, reader) for reader in readers]
        for reader, other in zip(readers, others, strict=True):
            if other is not None and None not in others:
                reader.replace_all_uses_with(other)

    def _without(self, node: Node, found: _Passed, reader: Node) -> Node | None:
        """What `reader` gives, made without A G, which is `node`."""
        back, dense = found.edges.transposed, found.dense
        match reader.target, arguments_of(reader):
            case aten.sum.dim_IntList, (x, [0], *rest) if x is node and back in self.factors:
                each = call_before(reader, aten.mul.Tensor, dense, self.factors[back])
                return call_before(reader, aten.sum.dim_IntList, each, [0], *rest)
            case aten.mm.default, (left, right) if left is node and _turned(right) is not node:
                if _columns(right) < _columns(dense):
                    product = call_before(reader, aten.mm.default, dense, right)
                    return self._pass(reader, found, product)
            case aten.mm.default, (left, right) if _turned(left) is node:
                if (back, right) in self.passed:
                    turned = call_before(reader, aten.t.default, dense)
                    return call_before(reader, aten.mm.default, turned, self.passed[back, right])
            case aten.mm.default, (left, right) if right is node:
                passed = self.passed.get((back, _turned(left)))
                if passed is not None:
                    turned = call_before(reader, aten.t.default, passed)
                    return call_before(reader, aten.mm.default, turned, dense)
        return None

    def _pass(self, at: Node, found: _Passed, dense: Node) -> Node:
        """`dense` along the same edges, before the node `at`."""
        source, weight = found.edges.source, found.edges.weight
        if found.source_wraps:
            sent = call_before(at, aten.index.Tensor, dense, [source])
        else:
            sent = call_before(at, aten.index_select.default, dense, 0, source)
        if weight is not None:
            sent = call_before(at, aten.mul.Tensor, sent, weight)
        return self._added(at, found, sent, [found.rows, _columns(dense)])

    def _sum_of_factors(self, at: Node, found: _Passed) -> Node:
        target, weight = found.edges.target, found.edges.weight
        if weight is not None:
            each = call_before(at, aten.select.int, weight, 1, 0)
        else:
            dtype = value_of(found.dense).dtype
            each = call_before(at, aten.ones_like.default, target, dtype=dtype)
        added = self._added(at, found, each, [found.rows])
        return call_before(at, aten.unsqueeze.default, added, 1)

    def _added(self, at: Node, found: _Passed, lines: Node, shape: list[Any]) -> Node:
        target = found.edges.target
        zeros = call_before(at, aten.new_zeros.default, lines, shape)
        if found.target_wraps:
            return call_before(at, aten.index_put.default, zeros, [target], lines, True)
        return call_before(at, aten.index_add.default, zeros, 0, target, lines)


def _passed(node: Node) -> _Passed | None:
    """What `node` is, if it adds up by index what was gathered by index, and nobody else reads."""
    match name_of(node), arguments_of(node):
        case "index_add", (zeros, 0, target, sent):
            wraps = False
        case (("index_put" | "_unsafe_index_put"), (zeros, [target], sent, True)):
            wraps = True
        case "scatter_add", (zeros, 0, lines, sent):
            target, wraps = _line(lines), False
        case _:
            return None
    rows = _rows(node, zeros)
    if node.kwargs or is_recomputed(node) or rows is None or target is None:
        return None
    gathered, weight = _weighted(sent)
    match name_of(gathered), arguments_of(gathered):
        case "index", (dense, [source]):
            source_wraps = True
        case ("index_select", (dense, 0, source)) | ("embedding", (dense, source, *_)):
            source_wraps = False
        case "gather", (dense, 0, lines):
            source, source_wraps = _line(lines), False
        case _:
            return None
    if source is None or not _is_index(source) or not _is_index(target) or not _is_matrix(dense):
        return None
    is_whole = _shape(sent) == _shape(gathered) == (*_shape(source), _columns(dense))
    is_whole &= _shape(source) == _shape(target) and _columns(node) == _columns(dense)
    if not is_whole or not _is_read_once(sent) or not _is_read_once(gathered):
        return None
    return _Passed(_Edges(source, target, weight), dense, rows, source_wraps, wraps)


def _weighted(sent: Node) -> tuple[Node, Node | None]:
    """The lines that are sent, and the factor of each."""
    sent = _unexpanded(sent)
    if sent.target is aten.mul.Tensor:
        for lines, weight in (sent.args, sent.args[::-1]):
            if isinstance(lines, Node) and _is_factor(weight, sent):
                return _unexpanded(lines), weight
    return sent, None


def _is_factor(weight: object, sent: Node) -> TypeGuard[Node]:
    """One for each line."""
    if not isinstance(weight, Node) or value_of(weight).dtype != value_of(sent).dtype:
        return False
    return _shape(weight) == (*_shape(sent)[:1], 1)


def _unexpanded(node: Node) -> Node:
    """Without an expansion to the shape that it has."""
    if node.target is not aten.expand.default or not _is_read_once(node):
        return node
    source: Node = arguments_of(node)[0]
    return source if _shape(source) == _shape(node) else node


def _product(dense: Node) -> _EdgeMatmul | None:
    """What `dense` is, if one reader reads it."""
    if not _is_read_once(dense) or is_recomputed(dense) or dense.kwargs:
        return None
    match name_of(dense), arguments_of(dense):
        case "mm", (left, right):
            return _EdgeMatmul(left, right, None)
        case "addmm", (bias, left, right) if value_of(bias).dim() == 1:
            return _EdgeMatmul(left, right, bias)
    return None


def _readers_of_matrix(node: Node) -> Iterator[Node]:
    """Those of its transposed form instead of what transposes it."""
    for user in node.users:
        yield from user.users if user.target is aten.t.default else (user,)


def _turned(node: Node) -> Node | None:
    """What `node` is the transposed form of."""
    return arguments_of(node)[0] if node.target is aten.t.default else None


def _is_read_once(node: Node) -> bool:
    return sum(name_of(user) not in OF_SHAPE for user in node.users) == 1


def _is_matrix(node: Node) -> bool:
    value: Tensor = value_of(node)
    return value.dim() == RANK and value.dtype in TYPES and isinstance(value.shape[1], int)


def _is_index(node: Node) -> bool:
    value: Tensor = value_of(node)
    return value.dim() == 1 and value.dtype == torch.int64


def _line(lines: Node) -> Node | None:
    """What gives each line its index, where `lines` has it at each element."""
    if lines.target is not aten.expand.default:
        return None
    (column, *_) = arguments_of(lines)
    if _shape(column) != (*_shape(lines)[:1], 1) or name_of(column) not in ("unsqueeze", "view"):
        return None
    index: Node = arguments_of(column)[0]
    return index if len(_shape(index)) == 1 else None


def _shape(node: Node) -> tuple[object, ...]:
    return formulas(value_of(node).shape)


def _rows(node: Node, zeros: Node) -> Any:
    """How many lines `zeros` has, as an argument in the graph; None if it may be no zeros, or no
    matrix."""
    match name_of(zeros), arguments_of(zeros):
        case ("new_zeros", (_, [rows, _])) | ("zeros", ([rows, _],)) | ("full", ([rows, _], 0)):
            return rows
        case "zeros_like", _:
            rows, *others = value_of(node).shape or (None,)
            return rows if isinstance(rows, int) and len(others) == 1 else None
    return None


def _columns(node: Node) -> int:
    count: int = value_of(node).shape[1]
    return count
