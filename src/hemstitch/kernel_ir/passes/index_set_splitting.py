"""Index-set splitting: loops are split at the borders of concatenations and paddings that they
read. A piece inside one operand computes that operand alone, without a select.

Lane loops are split at multiples of the widest vector, so that only the last vector of a loop is
masked.
A vector across a border becomes a piece that still selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import eliminate_dead_values
from hemstitch.kernel_ir.index import Axis, Index, Variable, at
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    Constant,
    Contract,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Position,
    Scan,
    Stmt,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined
from hemstitch.machine.cpu_numbers import CPU

LEAST_ROWS = 32  # of a nest that is a piece of another; bounds the number of nests
MOST_PIECES = 8  # of a loop; each has a copy of the body
ORDERED = (Scan, Contract)  # depend on the order of lanes
Bounds = tuple[int, int]  # least and greatest value


def split_loops(kernel: Kernel) -> Kernel:
    """The kernel with its loops split."""

    def nest_of(nest: Nest) -> Nest:
        pieces = _Pieces(nest)
        return nest if not pieces.borders else replace(nest, body=pieces.body())

    return _with_nests(kernel, lambda nest: [nest_of(nest)])


def split_rows(kernel: Kernel) -> Kernel:
    """The kernel with nests split along their last row axis. It precedes matmul blocking: there
    operands are transposed in registers if they do not depend on the operand of the
    concatenation."""
    return _with_nests(kernel, lambda nest: _Pieces(nest).nests())


def _with_nests(kernel: Kernel, nests_of: Callable[[Nest], Iterable[Nest]]) -> Kernel:
    def changed(phase: Phase) -> Phase:
        return replace(phase, nests=tuple(new for old in phase.nests for new in nests_of(old)))

    return replace(kernel, phases=tuple(map(changed, kernel.phases)))


@dataclass(slots=True)
class _KnownBounds:
    """What is known in a piece: bounds of axes and values, truth of conditions, and `names` of
    values that equal another. `places`: indices of split axes."""

    axes: Mapping[Variable, Bounds] = field(default_factory=dict)
    places: Mapping[Variable, Index] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    truths: dict[str, bool] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def in_piece(self, axis: Axis, piece: Axis, low: int) -> _KnownBounds:
        """Inside the piece of the loop over `axis` that begins at `low`."""
        assert isinstance(piece.extent, int)
        axes = {**self.axes, axis: (low, low + piece.extent - 1)}
        return replace(
            self.inside(), axes=axes, places={**self.places, axis: at(piece).shifted(low)}
        )

    def inside(self) -> _KnownBounds:
        """Inside a loop that is not split."""
        copied = dict(self.bounds), dict(self.truths), dict(self.names)
        return _KnownBounds(self.axes, self.places, *copied)

    def bounds_of(self, index: Index) -> Bounds | None:
        """The bounds of an index, or None if unknown."""
        if not isinstance(index.constant, int):
            return None
        low = high = index.constant
        for variable, step in index.terms:
            if variable not in self.axes or not isinstance(step, int):
                return None
            ends = [step * end for end in self.axes[variable]]
            low, high = low + min(ends), high + max(ends)
        return low, high


class _Pieces:
    """The loops of one nest. `borders`: constants that an axis is compared with."""

    def __init__(self, nest: Nest) -> None:
        everything = [statement for part in nest.parts for statement in walk(part)]
        self.positions = {s.name: s.index for s in everything if isinstance(s, Position)}
        self.borders: dict[Axis, set[int]] = {}
        for statement in everything:
            if isinstance(statement, Let) and statement.op in _COMPARISONS:
                self._add_border(statement)
        outer = {s.axis.outer for s in everything if isinstance(s, BLOCKS)}
        self.outer = {axis for axis in outer if axis is not None}
        self.nest = nest
        self.known = _KnownBounds()
        self.count = 0
        list(self._statements(nest.prologue, self.known))

    def _add_border(self, compared: Let) -> None:
        left, right = (self.positions.get(name) for name in compared.operands)
        if left is None or right is None or right.terms or len(left.terms) != 1:
            return
        ((axis, step),) = left.terms
        border = right.constant - left.constant
        if isinstance(axis, Axis) and step == 1 and isinstance(border, int):
            self.borders.setdefault(axis, set()).add(border)

    def body(self) -> tuple[Stmt, ...]:
        return tuple(self._statements(self.nest.body, self.known))

    def nests(self) -> Iterator[Nest]:
        """One nest for each piece of the last row axis, if all pieces are large enough."""
        nest = self.nest
        ends = self._ends_of_rows()
        if len(ends) <= 2 or min(high - low for low, high in pairwise(ends)) < LEAST_ROWS:
            yield nest
            return
        *outer, axis = nest.rows
        for number, (low, high) in enumerate(pairwise(ends)):
            piece = Axis(f"{axis.name}p{number}", high - low)
            body = eliminate_dead_values(
                self._statements(nest.body, self.known.in_piece(axis, piece, low))
            )
            yield replace(nest, rows=(*outer, piece), body=body)

    def _ends_of_rows(self) -> Sequence[int]:
        """Ends of the row pieces, as in `_ends`. A nest with state across rows stays whole."""
        nest = self.nest
        is_free = not (nest.epilogue or nest.panels or eliminate_dead_values(nest.prologue))
        axis = nest.rows[-1] if nest.rows and is_free else None
        return () if axis is None or axis in self.outer else self._ends(axis, 1)

    def _statements(self, body: Iterable[Stmt], known: _KnownBounds) -> Iterator[Stmt]:
        """The simplified statements; `known` grows with their definitions."""
        for statement in body:
            if isinstance(statement, Loop):
                yield from self._loop(statement, known)
            elif isinstance(statement, Contract):
                yield self._contraction(statement, known)
            else:
                yield from _simplified(statement, known)

    def _loop(self, loop: Loop, known: _KnownBounds) -> Iterator[Stmt]:
        is_free = loop.axis not in self.outer and loop.between is None
        is_free &= not any(isinstance(statement, ORDERED) for statement in walk(loop.body))
        ends = self._ends(loop.axis, CPU.widest_lanes if loop.lanes else 1) if is_free else ()
        if len(ends) <= 2:
            yield self._unsplit(loop, known)
            return
        for number, (low, high) in enumerate(pairwise(ends)):
            piece = Axis(f"{loop.axis.name}p{number}", high - low)
            inside = known.in_piece(loop.axis, piece, low)
            inside.names |= self._fresh(loop.body)
            yield Loop(
                piece, eliminate_dead_values(self._statements(loop.body, inside)), loop.lanes
            )

    def _unsplit(self, loop: Loop, known: _KnownBounds) -> Loop:
        """The loop as a whole, its body simplified."""
        return replace(
            loop, body=eliminate_dead_values(self._statements(loop.body, known.inside()))
        )

    def _contraction(self, contraction: Contract, known: _KnownBounds) -> Contract:
        inside = known.inside()
        body = tuple(self._statements(contraction.body, inside))
        name = known.names.get(contraction.name, contraction.name)
        left, right = (inside.names.get(old, old) for old in (contraction.left, contraction.right))
        body, band = eliminate_dead_values(body, (left, right)), contraction.band_at(known.places)
        return replace(contraction, name=name, body=body, left=left, right=right, band=band)

    def _ends(self, axis: Axis, unit: int) -> Sequence[int]:
        """The ends of all pieces: multiples of `unit` from 0 on, then the extent. Empty if the axis
        cannot be split."""
        extent = axis.extent
        if not isinstance(extent, int) or axis.limit is not None or axis not in self.borders:
            return ()
        floors = {border // unit * unit for border in self.borders[axis]}
        ceilings = {-(-border // unit) * unit for border in self.borders[axis]}
        ends = sorted({0, extent} | {end for end in floors | ceilings if 0 < end < extent})
        return ends if len(ends) <= MOST_PIECES + 1 else ()

    def _fresh(self, body: Sequence[Stmt]) -> dict[str, str]:
        """New names for the definitions in a copy of `body`."""
        self.count += 1
        names = {name for statement in walk(body) for name in defined(statement)}
        names |= {statement.name for statement in walk(body) if isinstance(statement, Init)}
        return {name: f"{name}_p{self.count}" for name in names}


def _simplified(statement: Stmt, known: _KnownBounds) -> Iterator[Stmt]:
    """The statement as it is in a piece; nothing if it equals another value."""
    rewriter = Rewriter(known.names, lambda index: index.substitute(known.places))
    match statement:
        case Constant(name, int(value), DType.I64):
            known.bounds[name] = value, value
        case Position(name, index):
            bounds = known.bounds_of(index)
            if bounds is not None:
                known.bounds[name] = bounds
        case Let(name, op, operands, _, dtype) if op in _COMPARISONS or op in _CONNECTIVES:
            truth = _truth(op, operands, known)
            if truth is not None:
                known.truths[name] = truth
                yield Constant(known.names.get(name, name), truth, dtype)
                return
            if (operand := _undecided_operand(op, operands, known)) is not None:
                known.names[name] = known.names.get(operand, operand)
                return
        case Let(name, Op.WHERE, (condition, yes, no)) if condition in known.truths:
            chosen = yes if known.truths[condition] else no
            known.names[name] = known.names.get(chosen, chosen)
            return
        case Load(name, buffer, _, str(mask)) if mask in known.truths:
            if not known.truths[mask]:
                yield Constant(known.names.get(name, name), 0, buffer.dtype.compute)
                return
            statement = replace(statement, mask=None)
        case _:
            pass
    yield rewriter.statement(statement)


def _truth(op: Op, operands: Sequence[str], known: _KnownBounds) -> bool | None:
    """The value of a condition that is constant in a piece, or None."""
    if op in _CONNECTIVES:
        decides = _CONNECTIVES[op]
        truths = [known.truths.get(name) for name in operands]
        if decides in truths:
            return decides
        return None if None in truths else not decides
    bounds = [known.bounds.get(name) for name in operands]
    if bounds[0] is None or bounds[1] is None:
        return None
    (low, high), (least, most) = bounds[0], bounds[1]
    above, below = low >= most, high < least
    if not (above or below):
        return None
    return above if op is Op.GE else below


def _undecided_operand(op: Op, operands: Sequence[str], known: _KnownBounds) -> str | None:
    """The operand that a conjunction or disjunction is equal to, as the other one is neutral."""
    undecided = [name for name in operands if name not in known.truths]
    return undecided[0] if op in _CONNECTIVES and len(undecided) == 1 else None


_COMPARISONS = frozenset({Op.GE, Op.LT})  # of borders, as `stitching/pulled_values.py` has them
_CONNECTIVES = {Op.AND: False, Op.OR: True}  # and the operand that decides the result
