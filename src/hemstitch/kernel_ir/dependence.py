"""Dependence analysis of a nest: the loops that its values depend on, and slices of statements."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Buffer,
    Constant,
    Contract,
    Finish,
    Init,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Role,
    Running,
    Scan,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import used

Axes = frozenset[Axis]
PURE = (Let, Constant, Position, Random, Load)  # statements of a contraction's body


def matmul_problem(nest: Nest) -> str | None:
    """The reason why a contraction of the nest cannot be lowered to a tile matmul (see `Contract`),
    or None."""
    walker = _AxisAnalysis(nest)
    for part in nest.parts:
        walker.statements(part, None)
    return walker.problem


def row_problem(nest: Nest) -> str | None:
    """The reason why row buffers of the nest cannot stay in the registers of a tile of rows, or
    None. A row may load from a row buffer only where it has stored, and may not add to one that it
    loads."""
    accumulated: set[Buffer] = set()
    stored: dict[Buffer, set[_Place]] = {}
    loaded: dict[Buffer, set[_Place]] = {}
    for statement, lanes in _with_lane_axes(nest.body, frozenset()):
        if isinstance(statement, Store) and statement.buffer.role is Role.TASK:
            stored.setdefault(statement.buffer, set()).add(_place(statement.index, lanes))
        if isinstance(statement, Load) and statement.buffer.role is Role.TASK:
            place = _place(statement.index, lanes) if statement.mask is None else statement.mask
            loaded.setdefault(statement.buffer, set()).add(place)
        if isinstance(statement, AccumulateInto):
            accumulated.add(statement.buffer)
    for buffer, places in stored.items():
        read = loaded.get(buffer, set())
        if not read <= places or (read and buffer in accumulated):
            return f"matrix units take many rows, but one has all of {buffer.name} ({buffer.why})"
    return None


_Place = Hashable  # of an access within a row


def _place(index: Index, lanes: Axes) -> _Place:
    """The place of an access within a row. Lane axes of equal extent count as equal."""

    def kind(variable: Variable) -> object:
        return variable.extent if isinstance(variable, Axis) and variable in lanes else variable

    return frozenset((kind(variable), step) for variable, step in index.terms), index.constant


def _with_lane_axes(body: Iterable[Stmt], lanes: Axes) -> Iterator[tuple[Stmt, Axes]]:
    """Each statement inside loops, with the axes that are lanes there. The axis of a serial loop is
    not: no register holds all of its iterations."""
    for statement in body:
        if isinstance(statement, BLOCKS):
            is_wide = not isinstance(statement, Loop) or statement.lanes
            inside = lanes | {statement.axis} if is_wide else lanes
            yield from _with_lane_axes(statement.body, inside)
        else:
            yield statement, lanes


def backward_slice(name: str, body: Iterable[Stmt]) -> list[Stmt]:
    """The pure statements of `body` that the value `name` depends on, in their order."""
    statements: list[Stmt] = []
    needed = {name}
    for statement in reversed(tuple(body)):
        if isinstance(statement, PURE) and statement.name in needed:
            statements.append(statement)
            needed |= set(_operands(statement))
    return statements[::-1]


def eliminate_dead_values(body: Iterable[Stmt], results: Iterable[str] = ()) -> tuple[Stmt, ...]:
    """The statements of `body` without the values that no later statement uses and that are not
    among `results`."""
    statements: list[Stmt] = []
    results = set(results)
    for statement in reversed(tuple(body)):
        if not isinstance(statement, PURE) or statement.name in results:
            statements.append(statement)
            results |= set(used(statement))
    return tuple(statements[::-1])


def live_ins(body: Iterable[Stmt]) -> set[str]:
    """The names that the pure statements of `body` use and do not define."""
    body = tuple(body)
    defined = {statement.name for statement in body if isinstance(statement, PURE)}
    return {name for statement in body for name in _operands(statement)} - defined


def max_live_values(body: Iterable[Stmt]) -> int:
    """The largest number of values of a loop body that are live at one point of it, for an estimate
    of register pressure. Constants do not count."""
    body = tuple(body)
    defined = {s.name for s in body if isinstance(s, PURE) and not isinstance(s, Constant)}
    alive: set[str] = set()
    largest = 0
    for statement in reversed(body):
        alive |= defined.intersection(_operands(statement))
        largest = max(largest, len(alive))
        alive.discard(getattr(statement, "name", ""))
    return largest


def _operands(statement: Stmt) -> Iterator[str]:
    match statement:
        case Let(operands=operands):
            yield from operands
        case Random(_, seed, index):
            yield seed
            yield from _computed(index)
        case Load(_, _, index, mask):
            yield from _computed(index)
            if mask is not None:
                yield mask
        case Position(_, index):
            yield from _computed(index)
        case Accumulate() | Scan():
            yield statement.value
        case Store(index=index) | AccumulateInto(index=index):
            yield from _computed(index)
            yield statement.value


def _computed(index: Index) -> Iterator[str]:
    return (variable.name for variable, _ in index.terms if isinstance(variable, Computed))


class _AxisAnalysis:
    """Finds the axes that each value depends on. `axes`: those of the values so far; `problem`: the
    first contraction that breaks a rule."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.problem: str | None = None
        self.axes: dict[str, Axes] = {}
        self.open: set[Axis] = set(nest.rows)
        self.panels = {s.buffer for s in walk(nest.panels) if isinstance(s, Store)}

    def statements(self, statements: Iterable[Stmt], lane: Axis | None) -> None:
        for statement in statements:
            if isinstance(statement, Loop):
                self.open.add(statement.axis)
                self.statements(statement.body, statement.axis if statement.lanes else lane)
                self.open.remove(statement.axis)
            elif isinstance(statement, Contract):
                self._contract(statement, lane)
            elif isinstance(statement, AccumulateMatmul):
                self._matmul(statement, lane)
            elif isinstance(statement, Running):
                self.axes[statement.name] = self.axes[statement.accumulator] - {lane}
            else:
                self._value(statement)

    def _value(self, statement: Stmt) -> None:
        match statement:
            case Let(name, _, operands):
                self.axes[name] = self._of_names(operands)
            case Constant(name):
                self.axes[name] = frozenset()
            case Position(name, index):
                self.axes[name] = self._of_index(index)
            case Random(name, seed, index):
                self.axes[name] = self._of_index(index) | self._of_names((seed,))
            case Load(name, buffer, index, mask):
                mask_axes = self._of_names(() if mask is None else (mask,))
                self.axes[name] = self._of_index(index) | self._rows_in_memory(buffer) | mask_axes
            case Init(name):
                self.axes[name] = frozenset()
            case Accumulate(accumulator, value):
                self.axes[accumulator] |= self._of_names((value,))
            case Scan(name, accumulator, value):
                self.axes[accumulator] |= self._of_names((value,))
                self.axes[name] = self.axes[accumulator]
            case Finish(name, accumulator, position):
                open_axes = self.axes[accumulator] & self.open
                self.axes |= {n: open_axes for n in (name, position) if n is not None}
            case _:
                pass

    def _rows_in_memory(self, buffer: Buffer) -> Axes:
        """The row axes that the contents of a task's buffer depend on."""
        if buffer.role is not Role.TASK:
            return frozenset()
        return frozenset(self.nest.rows[:-1] if buffer in self.panels else self.nest.rows)

    def _contract(self, contract: Contract, lane: Axis | None) -> None:
        self.statements(contract.body, lane)
        left, right = self.axes[contract.left], self.axes[contract.right]
        self.axes[contract.name] = (left | right) - {contract.axis}
        if any(not isinstance(statement, PURE) for statement in contract.body):
            self.problem = "a matmul in an operand of another is recomputed in every step"
        elif lane in left:
            self.problem = "the left operand of a matmul differs between lanes"
        elif self.nest.rows and self.nest.rows[-1] in right:
            self.problem = "the right operand of a matmul differs between rows of a tile"

    def _matmul(self, matmul: AccumulateMatmul, lane: Axis | None) -> None:
        self.statements(matmul.body, lane)
        left, right = self.axes[matmul.left], self.axes[matmul.right]
        self.axes[matmul.accumulator] |= left | right
        inside = {statement.name for statement in matmul.body if isinstance(statement, PURE)}
        outside = live_ins(matmul.body)
        if len(inside) < len(matmul.body):
            self.problem = "a matmul in an operand of another is recomputed in every step"
        elif lane in self._of_names(outside) or matmul.right not in inside:
            self.problem = "the right operand of a matmul over lanes is defined outside it"
        elif self.nest.rows and self.nest.rows[-1] in right:
            self.problem = "the right operand of a matmul differs between rows of a tile"

    def _of_names(self, names: Iterable[str]) -> Axes:
        return frozenset[Axis]().union(*(self.axes[name] for name in names))

    def _of_index(self, index: Index) -> Axes:
        axes = frozenset(v for v, _ in index.terms if isinstance(v, Axis))
        return axes | self._of_names(_computed(index))
