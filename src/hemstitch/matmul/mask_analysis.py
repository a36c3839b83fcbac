"""What of a matmul is of no use, because a mask that the program makes excludes it: of causal
attention nearly half, in forward and backward. Such a mask is known from the numbers of rows and
columns that it compares. From there one follows what is -inf outside of what it lets through, then
what is zero there, and back from there to matmuls of which nobody looks at those elements.

Zero times a number is taken for zero, also where the number is not finite: as by the library, which
skips what lies behind the diagonal. Takes nodes of the graph IR; gives the bands of its matmuls and
attentions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

import numpy as np

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Attention, Matmul, MatmulAxis, StructuredCall, Within
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Graph, Node, Op, toposort, users
from hemstitch.ir.ops import is_elementwise, is_view
from hemstitch.matmul.written_numbers import Array, written_numbers
from hemstitch.rewrites.algebra import constant_value
from hemstitch.rewrites.engine import substitute

MAX_COMPARED = 1 << 24  # elements of what is compared, of one batch


class Outside(Enum):
    """What all elements outside are."""

    NO = "false"
    YES = "true"
    LOWEST = "-inf"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class Band:
    """The elements of a tensor with low <= high + distance, of which one is its last axis, -1, and
    the other that before, -2."""

    low: int
    high: int
    distance: int

    @property
    def transposed(self) -> Band:
        return replace(self, low=self.high, high=self.low)


Facts = Mapping[Outside, Collection[Band]]
Bands = Collection[Band] | None  # None: all of it is so


def mark_masked_matmuls(graph: Graph, builder: Builder) -> Graph:
    """`graph`, whose matmuls and attentions say what of them is of use."""
    marked: dict[Node, Node] = {}
    for call, within in masked_matmuls(toposort(graph.roots), graph.roots).items():
        assert isinstance(call.attr, StructuredCall)
        operation = call.attr.operation
        assert isinstance(operation, Matmul | Attention)
        attr = replace(call.attr, operation=replace(operation, within=within))
        marked[call] = builder.make(call.op, *call.inputs, attr=attr, type=call.type)
    return substitute(graph, marked, builder) if marked else graph


def masked_matmuls(nodes: Sequence[Node], roots: Iterable[Node]) -> dict[Node, Within]:
    """Of calls among `nodes`, sorted, that do not say it yet. `roots`: what somebody may look at,
    whatever reads it here."""
    analysis = _MaskAnalysis(nodes, roots)
    candidates = ((node, next(analysis.within(node), None)) for node in nodes)
    return {node: within for node, within in candidates if within is not None}


class _MaskAnalysis:
    def __init__(self, nodes: Sequence[Node], roots: Iterable[Node]) -> None:
        self.readers = users(nodes)
        self.roots = {*roots}
        self.facts = _facts_of_all(nodes)
        bands = (band for facts in self.facts.values() for kind in facts.values() for band in kind)
        self.bands = [*dict.fromkeys(bands)]

    def within(self, call: Node) -> Iterator[Within]:
        operation = call.attr.operation if isinstance(call.attr, StructuredCall) else None
        if isinstance(operation, Attention) and operation.has_mask and operation.within is None:
            yield from map(_within, self._known(call.inputs[3], Outside.LOWEST))
        if operation != Matmul(has_addend=False) or call.inputs[0].type.rank != 3:
            return
        left, right = call.inputs
        for band in self._known(left, Outside.ZERO):
            yield _within(band, columns=MatmulAxis.STEP)
        for band in self._known(right, Outside.ZERO):
            yield _within(band, rows=MatmulAxis.STEP)
        [result] = self.readers[call] or [call]
        yield from (_within(band) for band in self.bands if self._is_unseen(result, band))

    def _known(self, node: Node, kind: Outside) -> Collection[Band]:
        return self.facts.get(node, {}).get(kind, ())

    def _is_unseen(self, node: Node, band: Band) -> bool:
        """Whoever reads it makes the same of it, whatever finite numbers are outside the band."""
        readers = self.readers[node]
        is_read_here_alone = bool(readers) and node not in self.roots
        return is_read_here_alone and all(self._is_unseen_by(r, node, band) for r in readers)

    def _is_unseen_by(self, reader: Node, node: Node, band: Band) -> bool:
        moved = [band] if is_elementwise(reader.op) else _moved(reader, [band])
        if not moved:
            return False
        if any(moved[0] in bands for bands in self.facts.get(reader, {}).values()):
            return reader.op in ABSORBING  # by another operand, as nothing is known of this one
        is_dividend = reader.op is Op.DIV and reader.inputs[1] is not node
        is_finite = is_view(reader.op) or reader.op in FINITE or is_dividend
        return is_finite and self._is_unseen(reader, moved[0])


ABSORBING = (Op.ADD, Op.SUB, Op.MUL, Op.WHERE)
# Finite of finite operands, but for what overflows.
FINITE = (
    *(Op.ADD, Op.SUB, Op.MUL, Op.FMA, Op.NEG, Op.ABS, Op.MAXIMUM, Op.MINIMUM, Op.CAST),
    *(Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS),
)


def _within(
    band: Band, rows: MatmulAxis = MatmulAxis.ROW, columns: MatmulAxis = MatmulAxis.COLUMN
) -> Within:
    """`rows` and `columns`: of the matmul, those of the tensor with this band."""
    axes = {-2: rows, -1: columns}
    return Within(axes[band.low], axes[band.high], band.distance)


# --- where a mask begins


def _facts_of_all(nodes: Iterable[Node]) -> dict[Node, Facts]:
    facts_of: dict[Node, Facts] = {}
    numbers = written_numbers(nodes)
    for node in nodes:
        facts = _compared(node, numbers) or _followed(node, facts_of)
        distinct = {kind: [*dict.fromkeys(bands)] for kind, bands in facts.items() if bands}
        if distinct:
            facts_of[node] = distinct
    return facts_of


def _compared(node: Node, numbers: Mapping[Node, Array]) -> Facts:
    """Two known numbers of each element, of which one or both are those of its row or column."""
    compare = COMPARISONS.get(node.op)
    if compare is None or any(operand not in numbers for operand in node.inputs):
        return {}
    if node.type.rank < 2:
        return {}
    rows, columns = map(known, node.shape[-2:])
    if rows * columns > MAX_COMPARED:
        return {}
    (least, most), (low, high) = (_ends(numbers[operand]) for operand in node.inputs)
    is_up = node.op in (Op.LE, Op.LT)
    some = compare(least, high) if is_up else compare(most, low)
    every = compare(most, low) if is_up else compare(least, high)
    some, every = (np.broadcast_to(x, (rows, columns)) for x in (some, every))
    return {Outside.NO: _narrowest(some), Outside.YES: _narrowest(~every)}


COMPARISONS: Mapping[Op, Callable[[Array, Array], Array]] = {
    Op.LE: np.less_equal,
    Op.LT: np.less,
    Op.GE: np.greater_equal,
    Op.GT: np.greater,
}


def _ends(x: Array) -> tuple[Array, Array]:
    """The least and the greatest of all batches."""
    batches = x.reshape(-1, *x.shape[-2:])
    return batches.min(0), batches.max(0)


def _narrowest(inside: Array) -> list[Band]:
    """The bands that have all that is inside, if they leave anything out."""
    rows, columns = inside.shape
    is_any = inside.any(1)
    if not is_any.any():
        return []
    places, numbers = np.arange(columns), np.arange(rows)
    last = np.where(inside, places, -1).max(1)
    first = np.where(inside, places, columns).min(1)
    above = int((last - numbers)[is_any].max())
    below = int((numbers - first)[is_any].max())
    bands = [Band(-1, -2, above)] if above < columns - 1 else []
    return [*bands, Band(-2, -1, below)] if below < rows - 1 else bands


# --- what follows from operands


def _followed(node: Node, facts_of: Mapping[Node, Facts]) -> Facts:
    if is_view(node.op) and len(node.inputs) == 1:
        facts = facts_of.get(node.inputs[0], {})
        return {kind: _moved(node, bands) for kind, bands in facts.items()}
    follow = FOLLOWING.get(node.op)
    return {} if follow is None else follow(_OperandFacts(node, facts_of))


def _moved(view: Node, bands: Collection[Band]) -> list[Band]:
    """Bands of a view's operand as its own: none if its last two axes are not the same."""
    before, after = view.inputs[0].shape[-2:], view.shape[-2:]
    if len(before) < 2 or len(view.inputs) > 1:
        return []
    if view.op is Op.PERMUTE:
        assert isinstance(view.attr, tuple)
        last, rank = view.attr[-2:], view.type.rank
        if last == (rank - 1, rank - 2):
            return [band.transposed for band in bands]
        return [*bands] if last == (rank - 2, rank - 1) else []
    return [*bands] if before == after and view.op is not Op.UNFOLD else []


@dataclass(frozen=True, slots=True)
class _OperandFacts:
    """What is known of those of an elementwise node."""

    node: Node
    facts_of: Mapping[Node, Facts]

    def bands(self, kind: Outside) -> list[Bands]:
        """Of each operand."""
        return [self._of(operand, kind) for operand in self.node.inputs]

    def _of(self, operand: Node, kind: Outside) -> Bands:
        value = _constant(operand)
        if value is not None and value == VALUES[kind]:
            return None
        return self.facts_of.get(operand, {}).get(kind, ())


VALUES = {Outside.NO: 0, Outside.YES: 1, Outside.LOWEST: -inf, Outside.ZERO: 0}


def _constant(node: Node) -> float | None:
    """The value of all its elements."""
    while is_view(node.op) and len(node.inputs) == 1:
        (node,) = node.inputs
    value = constant_value(node)
    return None if value is None else float(value)


def _either(alternatives: Iterable[Bands]) -> Collection[Band]:
    return [band for bands in alternatives for band in bands or ()]


def _both(alternatives: Iterable[Bands]) -> Collection[Band]:
    some = [bands for bands in alternatives if bands is not None]
    return [band for band in some[0] if all(band in bands for bands in some)] if some else ()


def _without(bands: Collection[Band], other: Bands) -> Collection[Band]:
    return [] if other is None else [band for band in bands if band not in other]


def _and(operands: _OperandFacts) -> Facts:
    no, yes = operands.bands(Outside.NO), operands.bands(Outside.YES)
    return {Outside.NO: _either(no), Outside.YES: _both(yes)}


def _or(operands: _OperandFacts) -> Facts:
    no, yes = operands.bands(Outside.NO), operands.bands(Outside.YES)
    return {Outside.NO: _both(no), Outside.YES: _either(yes)}


def _not(operands: _OperandFacts) -> Facts:
    [no], [yes] = operands.bands(Outside.NO), operands.bands(Outside.YES)
    return {Outside.NO: yes or (), Outside.YES: no or ()}


def _where(operands: _OperandFacts) -> Facts:
    """Where the condition is known outside, what it chooses there; else what both are."""
    if_no, if_yes = operands.bands(Outside.NO)[0] or (), operands.bands(Outside.YES)[0] or ()
    facts: dict[Outside, Collection[Band]] = {}
    for kind in (Outside.LOWEST, Outside.ZERO):
        _, yes, no = operands.bands(kind)
        bands = [*_both((yes, no))]
        bands += [band for band in if_no if no is None or band in no]
        bands += [band for band in if_yes if yes is None or band in yes]
        facts[kind] = bands
    return facts


def _sum(operands: _OperandFacts) -> Facts:
    lowest, zero = operands.bands(Outside.LOWEST), operands.bands(Outside.ZERO)
    return {Outside.LOWEST: _either(lowest), Outside.ZERO: _both(zero)}


def _difference(operands: _OperandFacts) -> Facts:
    """-inf less -inf is NaN."""
    (lowest, other), zero = operands.bands(Outside.LOWEST), operands.bands(Outside.ZERO)
    return {Outside.LOWEST: _without(lowest or (), other), Outside.ZERO: _both(zero)}


def _product(operands: _OperandFacts) -> Facts:
    """Zero times -inf is neither."""
    zero, (first, second) = operands.bands(Outside.ZERO), operands.bands(Outside.LOWEST)
    left, right = (_constant(operand) for operand in operands.node.inputs)
    lowest: Bands = first if _is_positive(right) else second if _is_positive(left) else ()
    return {
        Outside.ZERO: _without(_without(_either(zero), first), second),
        Outside.LOWEST: lowest or (),
    }


def _quotient(operands: _OperandFacts) -> Facts:
    divisor = _constant(operands.node.inputs[1])
    lowest = operands.bands(Outside.LOWEST)[0] or () if _is_positive(divisor) else ()
    return {Outside.ZERO: operands.bands(Outside.ZERO)[0] or (), Outside.LOWEST: lowest}


def _is_positive(value: float | None) -> bool:
    return value is not None and 0 < value < inf


def _zero_of_zero(operands: _OperandFacts) -> Facts:
    return {Outside.ZERO: operands.bands(Outside.ZERO)[0] or ()}


def _exp(operands: _OperandFacts) -> Facts:
    return {Outside.ZERO: operands.bands(Outside.LOWEST)[0] or ()}


def _cast(operands: _OperandFacts) -> Facts:
    """False is zero."""
    [lowest], [zero] = operands.bands(Outside.LOWEST), operands.bands(Outside.ZERO)
    [no] = operands.bands(Outside.NO)
    return {Outside.LOWEST: lowest or (), Outside.ZERO: [*(zero or ()), *(no or ())]}


FOLLOWING: Mapping[Op, Callable[[_OperandFacts], Facts]] = {
    Op.AND: _and,
    Op.OR: _or,
    Op.NOT: _not,
    Op.WHERE: _where,
    Op.ADD: _sum,
    Op.SUB: _difference,
    Op.MUL: _product,
    Op.DIV: _quotient,
    Op.CAST: _cast,
    **dict.fromkeys((Op.EXP, Op.EXP2), _exp),
    **dict.fromkeys((Op.NEG, Op.TANH), _zero_of_zero),
}
