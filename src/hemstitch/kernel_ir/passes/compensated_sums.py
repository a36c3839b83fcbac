"""Long sums in memory that are added up in their own precision, in blocks: a few terms beside
them, and then to them with what rounding loses. Those are sums of f64, as no type is wider, and of
what a task adds now and then to others in double precision."""

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

TERMS = 32  # of a block


def compensate_sums(kernel: Kernel) -> Kernel:
    """The same kernel, where no more terms than these are added up one by one."""
    sums = {nest: _sums(nest) for phase in kernel.phases for nest in phase.nests}
    if not any(sums.values()):
        return kernel
    buffers: list[Buffer] = []

    def nest_of(nest: Nest) -> Nest:
        blocks = _CascadeRows(sums[nest], buffers)
        return replace(nest, body=tuple(blocks.statements(nest.body)))

    phases = tuple(replace(p, nests=tuple(map(nest_of, p.nests))) for p in kernel.phases)
    return replace(kernel, buffers=(*kernel.buffers, *buffers), phases=phases)


def added_with_lost(
    new: Callable[[str], str], whole: Buffer, lost: Buffer, place: Index, value: str
) -> Iterator[Stmt]:
    """Knuth's two-sum gives what rounding loses; of an infinite sum that is not a number."""
    dtype = whole.dtype
    total, before, rounded, added, kept, of_total, of_value, lacks = (new("v") for _ in range(8))
    none, zero, known, after = (new("v") for _ in range(4))
    yield Load(total, whole, place)
    yield Load(before, lost, place)
    yield Let(rounded, Op.ADD, (total, value), dtype, dtype)
    yield Let(added, Op.SUB, (rounded, total), dtype, dtype)
    yield Let(kept, Op.SUB, (rounded, added), dtype, dtype)
    yield Let(of_total, Op.SUB, (total, kept), dtype, dtype)
    yield Let(of_value, Op.SUB, (value, added), dtype, dtype)
    yield Let(lacks, Op.ADD, (of_total, of_value), dtype, dtype)
    yield Let(none, Op.ISNAN, (lacks,), dtype, DType.BOOL)
    yield Constant(zero, 0.0, dtype)
    yield Let(known, Op.WHERE, (none, zero, lacks), dtype, dtype)
    yield Let(after, Op.ADD, (before, known), dtype, dtype)
    yield Store(whole, place, rounded)
    yield Store(lost, place, after)


def _sums(nest: Nest) -> frozenset[Buffer]:
    """Memory of a task that loops say the places of. Sums of f64 of narrower numbers are exact
    enough."""
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
    """`loops`: those around it, within the one that is cut, that say where it is."""

    statement: AccumulateInto
    loops: tuple[Loop, ...]
    recent: Buffer
    lost: Buffer

    def everywhere(self, body: Iterable[Stmt]) -> Stmt:
        inner = tuple(body)
        for loop in reversed(self.loops):
            inner = (replace(loop, body=inner),)
        return inner[0]


@dataclass(slots=True)
class _CascadeRows:
    """`sums`: what is added up in blocks. `buffers`: the new ones of the kernel."""

    sums: frozenset[Buffer]
    buffers: list[Buffer]
    count: int = 0  # of names so far

    def statements(self, body: Sequence[Stmt]) -> Iterator[Stmt]:
        for statement in body:
            if not isinstance(statement, Loop) or statement.lanes:
                yield statement
            elif self._is_cut(statement):
                yield from self._cut(statement)
            else:
                yield replace(statement, body=tuple(self.statements(statement.body)))

    def _is_cut(self, loop: Loop) -> bool:
        """All that it does to memory of its own is to add to sums, each at one place or row."""
        added = [s.buffer for s in self._added_in(loop)]
        touched = [b for s in walk(loop.body) for b in buffers_of(s) if b in self.sums]
        terms, extent = self._terms(loop), loop.axis.extent
        return (
            len(set(added)) == len(added) == len(touched) > 0
            and loop.between is None
            and loop.axis.outer is None
            and terms < TERMS
            and not (isinstance(extent, int) and extent * terms <= TERMS)
            and all(self._is_apart(loop, s) for s in self._added_in(loop))
        )

    def _is_apart(self, loop: Loop, statement: AccumulateInto) -> bool:
        around, axes = _around(loop, statement), _axes(statement)
        return (
            loop.axis not in axes
            and any(inner.axis in axes for inner in around)
            and all(inner.between is None for inner in around)
        )

    def _added_in(self, loop: Loop) -> list[AccumulateInto]:
        inside = (s for s in walk(loop.body) if isinstance(s, AccumulateInto))
        return [s for s in inside if s.buffer in self.sums]

    def _terms(self, loop: Loop) -> int:
        """That one iteration adds to a sum; as many as a block has if that is not known."""
        return max((_repeated(loop, s) for s in self._added_in(loop)), default=1)

    def _cut(self, loop: Loop) -> Iterator[Stmt]:
        """What is lost is added at the end."""
        sums = [self._sum(loop, s) for s in self._added_in(loop)]
        size, axis = max(1, TERMS // self._terms(loop)), loop.axis
        outer = Axis(f"{axis.name}b", quotient(axis.extent + (size - 1), size))
        inner = Axis(f"{axis.name}r", size, outer, axis.extent)
        recent = {s.statement.buffer: s.recent for s in sums}
        moved = Rewriter(
            {},
            lambda index: index.substitute({axis: at(outer).scaled(size) + at(inner)}),
            lambda buffer, index: (recent.get(buffer, buffer), index),
        )
        rows = Loop(inner, tuple(map(moved.statement, loop.body)), lanes=False)
        yield from (s.everywhere(self._cleared(s.lost, s.statement.index)) for s in sums)
        cleared = [s.everywhere(self._cleared(s.recent, s.statement.index)) for s in sums]
        added = [s.everywhere(self._added(s)) for s in sums]
        yield Loop(outer, (*cleared, rows, *added), lanes=False)
        yield from (s.everywhere(self._restored(s)) for s in sums)

    def _sum(self, loop: Loop, statement: AccumulateInto) -> _Sum:
        axes = _axes(statement)
        loops = tuple(inner for inner in _around(loop, statement) if inner.axis in axes)
        own = statement.buffer
        recent, lost = (
            Buffer(f"{own.name}_{self._new(hint)}", own.dtype, Role.TASK, own.size, hint)
            for hint in ("recent", "lost")
        )
        self.buffers += (recent, lost)
        return _Sum(statement, loops, recent, lost)

    def _cleared(self, buffer: Buffer, place: Index) -> Iterator[Stmt]:
        zero = self._new("zero")
        yield Constant(zero, 0.0, buffer.dtype)
        yield Store(buffer, place, zero)

    def _added(self, s: _Sum) -> Iterator[Stmt]:
        value, place = self._new("v"), s.statement.index
        yield Load(value, s.recent, place)
        yield from added_with_lost(self._new, s.statement.buffer, s.lost, place, value)

    def _restored(self, s: _Sum) -> Iterator[Stmt]:
        value = self._new("v")
        yield Load(value, s.lost, s.statement.index)
        yield replace(s.statement, value=value)

    def _new(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_b{self.count}"


def _around(loop: Loop, statement: Stmt) -> tuple[Loop, ...]:
    """Loops in the first one, down to this statement."""
    for inner in loop.body:
        if isinstance(inner, Loop) and any(s is statement for s in walk(inner.body)):
            return inner, *_around(inner, statement)
    return ()


def _repeated(loop: Loop, statement: AccumulateInto) -> int:
    count, axes = 1, _axes(statement)
    for inner in _around(loop, statement):
        if inner.axis not in axes:
            count *= inner.axis.extent if isinstance(inner.axis.extent, int) else TERMS
    return count


def _axes(statement: AccumulateInto) -> set[object]:
    return {variable for variable, _ in statement.index.terms}
