"""Blocked, compensated summation in memory, where no wider type is at hand: sums in f64, and those
in f32 that a task adds to sums in f64 every few rows. A loop is tiled into blocks. A block has a
sum of its own, which a compensated addition adds to the whole one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.dims import quotient
from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    buffers_of,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter

BLOCK_ADDENDS = 32  # in a block; of numerics


def compensate_sums(kernel: Kernel) -> Kernel:
    """The kernel with such sums in blocks of at most `BLOCK_ADDENDS` addends."""
    sums = {nest: _sums(nest) for phase in kernel.phases for nest in phase.nests}
    if not any(sums.values()):
        return kernel
    buffers: list[Buffer] = []

    def nest_of(nest: Nest) -> Nest:
        blocks = _BlockedSums(sums[nest], buffers)
        return replace(nest, body=tuple(blocks.statements(nest.body)))

    phases = tuple(replace(p, nests=tuple(map(nest_of, p.nests))) for p in kernel.phases)
    return replace(kernel, buffers=(*kernel.buffers, *buffers), phases=phases)


def compensated_add(
    new: Callable[[str], str], sums: Buffer, errors: Buffer, place: Index, value: str
) -> Iterator[Stmt]:
    """Adds `value` to sums[place], and the rounding error to errors[place] (Knuth's two-sum). The
    error of an infinite sum counts as zero."""
    dtype = sums.dtype
    total, old_error, rounded, value_part, total_part, total_error, value_error, error = (
        new("v") for _ in range(8)
    )
    is_nan, zero, finite_error, new_error = (new("v") for _ in range(4))
    yield Load(total, sums, place)
    yield Load(old_error, errors, place)
    yield Let(rounded, Op.ADD, (total, value), dtype, dtype)
    yield Let(value_part, Op.SUB, (rounded, total), dtype, dtype)
    yield Let(total_part, Op.SUB, (rounded, value_part), dtype, dtype)
    yield Let(total_error, Op.SUB, (total, total_part), dtype, dtype)
    yield Let(value_error, Op.SUB, (value, value_part), dtype, dtype)
    yield Let(error, Op.ADD, (total_error, value_error), dtype, dtype)
    yield Let(is_nan, Op.ISNAN, (error,), dtype, DType.BOOL)
    yield Constant(zero, 0.0, dtype)
    yield Let(finite_error, Op.WHERE, (is_nan, zero, error), dtype, dtype)
    yield Let(new_error, Op.ADD, (old_error, finite_error), dtype, dtype)
    yield Store(sums, place, rounded)
    yield Store(errors, place, new_error)


def _sums(nest: Nest) -> frozenset[Buffer]:
    """The task buffers of sums to compensate, at places that loops decide. Sums in f64 of narrower
    values are exact enough."""
    flushed = {s.buffer for s in walk(nest.epilogue) if isinstance(s, Store)}
    narrow: set[str] = set()
    sums: set[Buffer] = set()
    for statement in walk(nest.body):
        match statement:
            case Let(name, op, operands, source):
                is_cast = op is Op.CAST and source is not DType.F64
                if is_cast or not narrow.isdisjoint(operands):
                    narrow.add(name)
            case AccumulateInto(buffer, index, Op.SUM, dtype, value) if buffer.role is Role.TASK:
                is_plain = buffer in flushed or (dtype is DType.F64 and value not in narrow)
                if is_plain and all(isinstance(variable, Axis) for variable, _ in index.terms):
                    sums.add(buffer)
    return frozenset(sums)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of a tiled loop. `loops`: the inner loops that its place depends on; `recent`: the sum
    of a block; `errors`: accumulated rounding errors."""

    statement: AccumulateInto
    loops: tuple[Loop, ...]
    recent: Buffer
    errors: Buffer

    def over_places(self, body: Iterable[Stmt]) -> Stmt:
        """`body` for each place of the sum."""
        inner = tuple(body)
        for loop in reversed(self.loops):
            inner = (replace(loop, body=inner),)
        return inner[0]


@dataclass(slots=True)
class _BlockedSums:
    """The loops of one nest. `sums`: the sums to compensate; `buffers`: new buffers of the
    kernel."""

    sums: frozenset[Buffer]
    buffers: list[Buffer]
    count: int = 0  # names so far

    def statements(self, body: Sequence[Stmt]) -> Iterator[Stmt]:
        for statement in body:
            if not isinstance(statement, Loop) or statement.lanes:
                yield statement
            elif self._is_blockable(statement):
                yield from self._block(statement)
            else:
                yield replace(statement, body=tuple(self.statements(statement.body)))

    def _is_blockable(self, loop: Loop) -> bool:
        """The loop accesses task sums only to add to each of them at one place, again in each
        iteration."""
        buffers = [s.buffer for s in self._accumulations(loop)]
        touched = [b for s in walk(loop.body) for b in buffers_of(s) if b in self.sums]
        addends, extent = self._addends(loop), loop.axis.extent
        return (
            len(set(buffers)) == len(buffers) == len(touched) > 0
            and loop.between is None
            and loop.axis.outer is None
            and addends < BLOCK_ADDENDS
            and not (isinstance(extent, int) and extent * addends <= BLOCK_ADDENDS)
            and all(self._revisits_sums(loop, s) for s in self._accumulations(loop))
        )

    def _revisits_sums(self, loop: Loop, statement: AccumulateInto) -> bool:
        """Each iteration adds to the same elements, which inner loops run over."""
        enclosing, axes = _enclosing_loops(loop, statement), _axes(statement)
        return (
            loop.axis not in axes
            and any(inner.axis in axes for inner in enclosing)
            and all(inner.between is None for inner in enclosing)
        )

    def _accumulations(self, loop: Loop) -> list[AccumulateInto]:
        inside = (s for s in walk(loop.body) if isinstance(s, AccumulateInto))
        return [s for s in inside if s.buffer in self.sums]

    def _addends(self, loop: Loop) -> int:
        """Addends of one iteration; `BLOCK_ADDENDS` if unknown."""
        return max((_repeated(loop, s) for s in self._accumulations(loop)), default=1)

    def _block(self, loop: Loop) -> Iterator[Stmt]:
        """The tiled loop. Rounding errors are added to the sums after it."""
        sums = [self._sum(loop, s) for s in self._accumulations(loop)]
        size, axis = max(1, BLOCK_ADDENDS // self._addends(loop)), loop.axis
        outer = Axis(f"{axis.name}b", quotient(axis.extent + (size - 1), size))
        inner = Axis(f"{axis.name}r", size, outer, axis.extent)
        recent = {s.statement.buffer: s.recent for s in sums}
        rewriter = Rewriter(
            {},
            lambda index: index.substitute({axis: at(outer).scaled(size) + at(inner)}),
            lambda buffer, index: (recent.get(buffer, buffer), index),
        )
        rows = Loop(inner, tuple(map(rewriter.statement, loop.body)), lanes=False)
        yield from (s.over_places(self._cleared(s.errors, s.statement.index)) for s in sums)
        clears = [s.over_places(self._cleared(s.recent, s.statement.index)) for s in sums]
        flushes = [s.over_places(self._flushed(s)) for s in sums]
        yield Loop(outer, (*clears, rows, *flushes), lanes=False)
        yield from (s.over_places(self._error_added(s)) for s in sums)

    def _sum(self, loop: Loop, statement: AccumulateInto) -> _Sum:
        axes = _axes(statement)
        loops = tuple(inner for inner in _enclosing_loops(loop, statement) if inner.axis in axes)
        buffer = statement.buffer
        recent, errors = (
            Buffer(f"{buffer.name}_{self._new(hint)}", buffer.dtype, Role.TASK, buffer.size, hint)
            for hint in ("recent", "lost")
        )
        self.buffers += (recent, errors)
        return _Sum(statement, loops, recent, errors)

    def _cleared(self, buffer: Buffer, place: Index) -> Iterator[Stmt]:
        zero = self._new("zero")
        yield Constant(zero, 0.0, buffer.dtype)
        yield Store(buffer, place, zero)

    def _flushed(self, s: _Sum) -> Iterator[Stmt]:
        value, place = self._new("v"), s.statement.index
        yield Load(value, s.recent, place)
        yield from compensated_add(self._new, s.statement.buffer, s.errors, place, value)

    def _error_added(self, s: _Sum) -> Iterator[Stmt]:
        value = self._new("v")
        yield Load(value, s.errors, s.statement.index)
        yield replace(s.statement, value=value)

    def _new(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_b{self.count}"


def _enclosing_loops(loop: Loop, statement: Stmt) -> tuple[Loop, ...]:
    """The loops inside `loop` around `statement`, from the outside in."""
    for inner in loop.body:
        if isinstance(inner, Loop) and any(s is statement for s in walk(inner.body)):
            return inner, *_enclosing_loops(inner, statement)
    return ()


def _repeated(loop: Loop, statement: AccumulateInto) -> int:
    count, axes = 1, _axes(statement)
    for inner in _enclosing_loops(loop, statement):
        if inner.axis not in axes:
            count *= inner.axis.extent if isinstance(inner.axis.extent, int) else BLOCK_ADDENDS
    return count


def _axes(statement: AccumulateInto) -> set[object]:
    return {variable for variable, _ in statement.index.terms}
