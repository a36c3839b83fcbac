"""Cascade summation of long sums. A loop is tiled into blocks: several accumulators add up a block,
and a compensated sum adds up the blocks. So the rounding error grows neither with the length of a
row nor with the number of blocks. PyTorch's `cascade_sum` has four levels instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.dims import Dim, quotient
from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.index import Axis, at
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateMatmul,
    Contract,
    Finish,
    Init,
    Kernel,
    Loop,
    Nest,
    Running,
    Scan,
    Stmt,
    statements,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined

ORDERED = (AccumulateMatmul, Contract, Running)  # use accumulators in the order of lanes


def cascade_sums(kernel: Kernel, block: int, accumulators: int) -> Kernel:
    """The kernel with long sums in blocks of about `block` addends. `accumulators`: of a block,
    when it is unrolled; scans have one."""
    if not any(_is_sum(statement) for statement in statements(kernel)):
        return kernel

    def nest_of(nest: Nest) -> Nest:
        return replace(nest, body=tuple(_CascadeBlocks(block, accumulators).statements(nest.body)))

    phases = (replace(p, nests=tuple(map(nest_of, p.nests))) for p in kernel.phases)
    return replace(kernel, phases=tuple(phases))


def _is_sum(statement: Stmt) -> bool:
    return (
        isinstance(statement, Init)
        and statement.op is Op.SUM
        and statement.dtype.is_float
        and statement.across
        and statement.running_max is None
        and statement.columns is None
    )


@dataclass(slots=True)
class _CascadeBlocks:
    """The loops of one nest. `block`: addends of a block; `count`: of the names so far; `sums`: the
    long sums."""

    block: int
    accumulators: int
    count: int = 0
    sums: dict[str, Init] = field(default_factory=dict)

    def statements(self, body: Sequence[Stmt]) -> Iterator[Stmt]:
        """The statements of a row, or of a serial loop around sums, with long sums in blocks."""
        inits = {s.name: s for s in body if isinstance(s, Init) and _is_sum(s)}
        loops = [s for s in body if isinstance(s, Loop)]
        long = {n for loop in loops if self._is_long(loop) for n in _added(loop) & inits.keys()}
        self.sums |= {name: inits[name] for name in long}
        for statement in body:
            match statement:
                case Init(name) if name in long:
                    yield replace(statement, across=False, compensated=True)
                case Loop() if _added(statement) & long:
                    yield from self._loop(statement)
                case Loop(lanes=False):
                    yield replace(statement, body=tuple(self.statements(statement.body)))
                case _:
                    yield statement

    def _is_long(self, loop: Loop) -> bool:
        """A sum of unknown length counts as long."""
        if any(isinstance(s, ORDERED) for s in walk(loop.body)):
            return False
        size = _addends(loop)
        return loop.between is None and not (isinstance(size, int) and size <= self._addends(loop))

    def _addends(self, loop: Loop) -> int:
        """Addends of a block in this loop."""
        is_scan = any(isinstance(s, Scan) for s in walk(loop.body))
        return self.block // self.accumulators if is_scan else self.block

    def _loop(self, loop: Loop) -> Iterator[Stmt]:
        """The loop with block sums. Of nested loops the innermost is split that has enough addends
        for a block."""
        inside = _addends(replace(loop, axis=Axis("one", 1)))
        is_short = isinstance(inside, int) and inside < self._addends(loop)
        if not loop.lanes and not is_short:
            body = [s for statement in loop.body for s in self._blocked(statement)]
            yield replace(loop, body=tuple(body))
        else:
            addends = inside if isinstance(inside, int) and not loop.lanes else 1
            size = max(1, self._addends(loop) // max(1, addends))
            yield from self._split(loop, size)

    def _blocked(self, statement: Stmt) -> Iterator[Stmt]:
        if isinstance(statement, Loop) and _added(statement) & self.sums.keys():
            yield from self._loop(statement)
        else:
            yield statement

    def _split(self, loop: Loop, size: int) -> Iterator[Stmt]:
        """A loop over blocks of `size` iterations, and one over the iterations left."""
        axis, extent = loop.axis, loop.axis.extent
        if axis.outer is not None or (isinstance(extent, int) and extent <= size):
            yield from self._block(loop)
            return
        if not isinstance(extent, int):
            outer = Axis(f"{axis.name}c", quotient(extent + (size - 1), size))
            inner = Axis(f"{axis.name}d", size, outer, extent)
            yield self._blocks(loop, outer, inner)
            return
        outer, inner = Axis(f"{axis.name}c", extent // size), Axis(f"{axis.name}d", size)
        yield self._blocks(loop, outer, inner)
        if extent % size:
            rest, start = Axis(f"{axis.name}r", extent % size), extent - extent % size
            rewriter = Rewriter(
                self._fresh(loop.body),
                lambda index: index.substitute({axis: at(rest).shifted(start)}),
            )
            body = tuple(map(rewriter.statement, loop.body))
            yield from self._block(replace(loop, axis=rest, body=body))

    def _blocks(self, loop: Loop, outer: Axis, inner: Axis) -> Loop:
        place = at(outer).scaled(inner.extent) + at(inner)
        rewriter = Rewriter({}, lambda index: index.substitute({loop.axis: place}))
        inner_loop = replace(loop, axis=inner, body=tuple(map(rewriter.statement, loop.body)))
        return Loop(outer, tuple(self._block(inner_loop)), lanes=False)

    def _block(self, loop: Loop) -> Iterator[Stmt]:
        """A loop with sums of its own, and their addition to the sums outside."""
        self.count += 1
        own = {n: f"{n}_block{self.count}" for n in sorted(_added(loop) & self.sums.keys())}
        for name, block in own.items():
            yield replace(self.sums[name], name=block)
        yield Rewriter(own).statement(loop)
        for name, block in own.items():
            yield Finish(f"{block}_sum", block)
            yield Accumulate(name, f"{block}_sum")

    def _fresh(self, body: Sequence[Stmt]) -> Mapping[str, str]:
        """New names for the definitions in a copy of `body`."""
        self.count += 1
        names = {name for statement in walk(body) for name in defined(statement)}
        names |= {statement.name for statement in walk(body) if isinstance(statement, Init)}
        return {name: f"{name}_rest{self.count}" for name in names}


def _added(loop: Loop) -> set[str]:
    return {s.accumulator for s in walk(loop.body) if isinstance(s, Accumulate)}


def _addends(loop: Loop) -> Dim:
    """An upper bound of the addends of the longest sum in a loop."""
    inner = [_addends(s) for s in loop.body if isinstance(s, Loop) and _added(s)]
    sizes = [size for size in inner if isinstance(size, int)]
    if len(sizes) < len(inner):
        return next(size for size in inner if not isinstance(size, int))
    return loop.axis.extent * sum(sizes) if sizes else loop.axis.extent
