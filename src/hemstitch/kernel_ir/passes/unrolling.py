"""Unrolling of short reductions in memory: addends are combined in registers, and memory is written
once.

fill: buffer[i] = 0                          for i:
for k < 3: for i:                               x0, x1, x2 = load[0, i], load[1, i], load[2, i]
    x = load[k, i]                              buffer[i] = 0 + (x0 + x1 + x2)
    buffer[i] = buffer[i] + x
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.dependence import PURE
from hemstitch.kernel_ir.index import Axis, Index
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Constant,
    Kernel,
    Let,
    Loop,
    Nest,
    Stmt,
    Store,
    buffers_of,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined, used
from hemstitch.machine.cpu_numbers import CPU

MAX_STATEMENTS = 256  # in the body of an unrolled loop; bounds the size of code
COMBINERS: Mapping[Op, Op] = {
    Op.SUM: Op.ADD,
    Op.PROD: Op.MUL,
    Op.MAX: Op.MAXIMUM,
    Op.MIN: Op.MINIMUM,
}


def unroll_reductions(kernel: Kernel) -> Kernel:
    """The kernel with such loops unrolled. The order of additions changes."""

    def nest_of(nest: Nest) -> Nest:
        return replace(nest, body=tuple(_statements(nest.body)))

    phases = (replace(p, nests=tuple(map(nest_of, p.nests))) for p in kernel.phases)
    return replace(kernel, phases=tuple(phases))


def _statements(body: Sequence[Stmt]) -> Sequence[Stmt]:
    """The statements with short reductions unrolled, inner loops first."""
    loops = [
        replace(s, body=tuple(_statements(s.body))) if isinstance(s, Loop) and not s.lanes else s
        for s in body
    ]
    return _without_fills([new for old in loops for new in _unrolled(old)])


def _unrolled(statement: Stmt) -> Sequence[Stmt]:
    """The body of a loop whose iterations all add to the same elements, unrolled; else the
    statement."""
    if not isinstance(statement, Loop) or not _is_short(statement):
        return (statement,)
    axis, extent = statement.axis, statement.axis.extent
    assert isinstance(extent, int)
    varying: set[str] = set()
    for inner in walk(statement.body):
        if isinstance(inner, PURE) and (_depends_on(inner, axis) or varying & {*used(inner)}):
            varying |= {*defined(inner)}
    return tuple(_Unrolling(axis, extent, frozenset(varying)).body(statement.body))


def _is_short(loop: Loop) -> bool:
    inside = list(walk(loop.body))
    added = [s for s in inside if isinstance(s, AccumulateInto)]
    touched = [b for s in inside for b in buffers_of(s)]
    extent = loop.axis.extent
    return (
        not loop.lanes
        and loop.between is None
        and loop.axis.outer is None
        and isinstance(extent, int)
        and 1 < extent <= CPU.combined_addends
        and extent * len(inside) <= MAX_STATEMENTS
        and bool(added)
        and all(isinstance(s, (*PURE, AccumulateInto)) or _is_plain(s) for s in inside)
        and all(_is_combined(s) and not _depends_on(s, loop.axis) for s in added)
        and all(touched.count(s.buffer) == 1 for s in added)
    )


def _is_plain(statement: Stmt) -> bool:
    return isinstance(statement, Loop) and statement.between is None


def _is_combined(statement: AccumulateInto) -> bool:
    return statement.op in COMBINERS and statement.positions is None and not statement.atomic


def _depends_on(statement: Stmt, axis: Axis) -> bool:
    index = getattr(statement, "index", None)
    return isinstance(index, Index) and any(variable == axis for variable, _ in index.terms)


@dataclass(frozen=True, slots=True)
class _Unrolling:
    """An unrolled loop over `axis`. `varying`: values that differ between iterations."""

    axis: Axis
    extent: int
    varying: frozenset[str]

    def body(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        for statement in body:
            match statement:
                case Loop():
                    yield replace(statement, body=tuple(self.body(statement.body)))
                case AccumulateInto():
                    yield from self._added(statement)
                case _ if self.varying.isdisjoint(defined(statement)):
                    yield statement
                case _:
                    yield from (self._copy(statement, k) for k in range(self.extent))

    def _copy(self, statement: Stmt, k: int) -> Stmt:
        names = {name: self._name(name, k) for name in self.varying}
        here = Index((), k)
        return Rewriter(names, lambda index: index.substitute({self.axis: here})).statement(
            statement
        )

    def _name(self, name: str, k: int) -> str:
        return f"{name}_{self.axis.name}{k}" if name in self.varying else name

    def _added(self, statement: AccumulateInto) -> Iterator[Stmt]:
        dtype, total = statement.dtype, self._name(statement.value, 0)
        for k in range(1, self.extent):
            name = f"{statement.value}_{statement.buffer.name}_{self.axis.name}to{k}"
            operands = total, self._name(statement.value, k)
            yield Let(name, COMBINERS[statement.op], operands, dtype, dtype)
            total = name
        yield replace(statement, value=total)


def _without_fills(body: Sequence[Stmt]) -> Sequence[Stmt]:
    """The statements; a loop that adds once to filled memory stores instead."""
    result: list[Stmt] = []
    fills: dict[Buffer, tuple[Loop, Constant, Store]] = {}
    for statement in body:
        touched = {b for s in walk((statement,)) for b in buffers_of(s)}
        filled = _constant_fill(statement)
        for buffer in touched & {*fills}:
            fill, zero, store = fills.pop(buffer)
            if filled is None and _adds_once_to(statement, fill, store):
                assert isinstance(statement, Loop)
                result = [s for s in result if s is not fill]
                statement = replace(
                    statement, body=tuple(_with_stores(statement.body, zero, store))
                )
        if filled is not None:
            assert isinstance(statement, Loop)
            fills[filled[1].buffer] = (statement, *filled)
        result.append(statement)
    return result


def _constant_fill(statement: Stmt) -> tuple[Constant, Store] | None:
    """The constant and the store of a loop nest that only fills memory."""
    while isinstance(statement, Loop) and statement.between is None and len(statement.body) == 1:
        (statement,) = statement.body
    match statement:
        case Loop(body=(Constant(name) as zero, Store(value=value) as store)) if name == value:
            return zero, store
    return None


def _adds_once_to(statement: Stmt, fill: Loop, store: Store) -> bool:
    """The statement adds once to each filled element, in the same loops, and does not load it."""
    paths = list(_paths(statement, store.buffer))
    if len(paths) != 1:
        return False
    added, axes = paths[0]
    filled = {s.axis for s in walk((fill,)) if isinstance(s, Loop)}
    return (
        isinstance(added, AccumulateInto)
        and _is_combined(added)
        and added.index == store.index
        and {*axes} == filled
        and len(axes) == len(filled)
    )


def _paths(
    statement: Stmt, buffer: Buffer, axes: tuple[Axis, ...] = ()
) -> Iterator[tuple[Stmt, tuple[Axis, ...]]]:
    """The statements that access the buffer, with the axes of the loops around."""
    if isinstance(statement, Loop):
        if statement.between is not None:
            axes = (*axes, *axes)
        for inner in statement.body:
            yield from _paths(inner, buffer, (*axes, statement.axis))
    elif any(b is buffer for s in walk((statement,)) for b in buffers_of(s)):
        yield statement, axes


def _with_stores(body: Iterable[Stmt], zero: Constant, store: Store) -> Iterator[Stmt]:
    for statement in body:
        match statement:
            case Loop():
                yield replace(statement, body=tuple(_with_stores(statement.body, zero, store)))
            case AccumulateInto(buffer, index, op, dtype, value) if buffer is store.buffer:
                name = f"{buffer.name}_{zero.name}_{value}"
                yield zero
                yield Let(name, COMBINERS[op], (zero.name, value), dtype, dtype)
                yield Store(buffer, index, name)
            case _:
                yield statement
