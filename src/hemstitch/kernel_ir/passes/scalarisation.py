"""Scalarisation of lane loops with running maxima or matmuls over lanes, for targets that have no
vector form of them. Such a loop becomes serial.

An accumulator that is read before it is finished, that is relative to a running maximum, or that
has columns becomes a row buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hemstitch.ir.graph import Op
from hemstitch.ir.ops import identity
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Index, at
from hemstitch.kernel_ir.nodes import (
    Accumulate,
    AccumulateMatmul,
    Buffer,
    Constant,
    Finish,
    Init,
    Kernel,
    Let,
    Load,
    Loop,
    Phase,
    Role,
    Running,
    Stmt,
    Store,
    statements,
)

ONLINE = (Running, AccumulateMatmul)
_JOIN = {Op.SUM: Op.ADD, Op.MAX: Op.MAXIMUM}


def scalarise(kernel: Kernel) -> Kernel:
    """The kernel without `Running` and `AccumulateMatmul`."""
    everything = list(statements(kernel))
    loops = [s for s in everything if isinstance(s, Loop) and _is_online(s)]
    if not loops:
        return kernel
    added = {
        statement.accumulator
        for loop in loops
        for statement in loop.body
        if isinstance(statement, Accumulate | AccumulateMatmul)
    }
    inits = {s.name: s for s in everything if isinstance(s, Init) and s.name in added}
    followed = {init.running_max for init in inits.values()}
    followed |= {
        statement.accumulator for statement in everything if isinstance(statement, Running)
    }
    buffers = {
        init.name: _buffer(init)
        for init in inits.values()
        if init.name in followed or init.running_max is not None or init.columns is not None
    }
    lowering = _Lowering(inits, buffers)
    phases = tuple(lowering.phase(phase) for phase in kernel.phases)
    return replace(kernel, phases=phases, buffers=(*kernel.buffers, *buffers.values()))


def _is_online(loop: Loop) -> bool:
    return loop.lanes and any(isinstance(statement, ONLINE) for statement in loop.body)


def _buffer(init: Init) -> Buffer:
    size = 1 if init.columns is None else init.columns.extent
    return Buffer(f"{init.name}_row", init.dtype, Role.TASK, size, "an accumulator")


def _place(init: Init) -> Index:
    return Index() if init.columns is None else at(init.columns)


def _for_each_column(init: Init, body: Iterable[Stmt]) -> Iterator[Stmt]:
    """`body` for each element of an accumulator."""
    if init.columns is None:
        yield from body
    else:
        yield Loop(init.columns, tuple(body), lanes=True)


@dataclass(slots=True)
class _Lowering:
    """`inits`: accumulators of scalarised loops, by name; `buffers`: the row buffers that replace
    some of them."""

    inits: Mapping[str, Init]
    buffers: Mapping[str, Buffer]
    names: int = 0

    def phase(self, phase: Phase) -> Phase:
        nests = (replace(nest, body=tuple(self._block(nest.body))) for nest in phase.nests)
        return replace(phase, nests=tuple(nests))

    def _new(self, hint: str) -> str:
        self.names += 1
        return f"one_{hint}{self.names}"

    def _block(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, statement: Stmt) -> Iterator[Stmt]:
        match statement:
            case Loop(axis, body, lanes):
                yield Loop(axis, tuple(self._block(body)), lanes and not _is_online(statement))
            case Init(name) if name in self.buffers:
                start, value = self._new("start"), identity(statement.op, statement.dtype)
                yield Constant(start, value, statement.dtype)
                yield from _for_each_column(statement, [self._store(statement, start)])
            case Init(name) if name in self.inits:
                yield replace(statement, across=False)
            case Finish(name, accumulator) | Running(name, accumulator) if (
                accumulator in self.buffers
            ):
                yield self._load(name, self.inits[accumulator])
            case Accumulate(accumulator, value) if accumulator in self.buffers:
                yield from self._accumulate(self.inits[accumulator], value)
            case AccumulateMatmul():
                yield self._matmul(statement)
            case _:
                yield statement

    def _load(self, name: str, init: Init) -> Stmt:
        return Load(name, self.buffers[init.name], _place(init))

    def _store(self, init: Init, value: str) -> Stmt:
        return Store(self.buffers[init.name], _place(init), value)

    def _accumulate(self, init: Init, value: str) -> Iterator[Stmt]:
        """Updates the accumulator, and rescales the sums that are relative to it."""
        old, new, dtype = self._new("old"), self._new("new"), init.dtype
        yield self._load(old, init)
        yield Let(new, _JOIN[init.op], (old, value), dtype, dtype)
        yield self._store(init, new)
        followers = [
            follower for follower in self.inits.values() if follower.running_max == init.name
        ]
        if not followers:
            return
        step, scale, lowest, zero, none = map(self._new, ("step", "scale", "low", "zero", "none"))
        yield Let(step, Op.SUB, (old, new), dtype, dtype)
        yield Let(scale, Op.EXP, (step,), dtype, dtype)
        yield Constant(lowest, identity(Op.MAX, dtype), dtype)
        yield Constant(zero, 0.0, dtype)
        yield Let(none, Op.EQ, (old, lowest), dtype, DType.BOOL)
        for follower in followers:
            yield from _for_each_column(follower, self._scaled(follower, scale, none, zero))

    def _scaled(self, init: Init, scale: str, none: str, zero: str) -> Iterator[Stmt]:
        held, scaled, rescaled = map(self._new, ("held", "scaled", "kept"))
        yield self._load(held, init)
        yield Let(scaled, Op.MUL, (held, scale), init.dtype, init.dtype)
        yield Let(rescaled, Op.WHERE, (none, zero, scaled), init.dtype, init.dtype)
        yield self._store(init, rescaled)

    def _matmul(self, matmul: AccumulateMatmul) -> Stmt:
        held, step, total = map(self._new, ("held", "step", "total"))
        init = self.inits[matmul.accumulator]
        operands = (matmul.left, matmul.right)
        added = (
            Let(step, Op.MUL, operands, init.dtype, init.dtype),
            self._load(held, init),
            Let(total, Op.ADD, (held, step), init.dtype, init.dtype),
            self._store(init, total),
        )
        return Loop(matmul.axis, (*matmul.body, *added), lanes=True)
