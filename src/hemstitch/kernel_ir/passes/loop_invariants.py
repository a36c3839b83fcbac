"""Loop-invariant code motion, out of the rows of a nest and out of serial loops.

each row of i0<12544:                           each task:
    lanes i1 < 64:                                  lanes i1 < 64:
        v1 = variance[i1]                               v1_before = variance[i1]
        v2 = rsqrt v1                                   v2_before = rsqrt v1_before
        v3 = x[i1 + 64*i0]                              v2_same[i1] = v2_before
        v4 = mul v3, v2                         each row of i0<12544:
        y[i1 + 64*i0] = v4                          lanes i1 < 64:
                                                        v2 = v2_same[i1]
                                                        v3 = x[i1 + 64*i0]
                                                        ...

Hoisted values depend on lanes alone, as a normalisation's statistics of columns or of channels
(NHWC) do. Nests with matmuls are left out. So are nests with checks: an integer division, say,
stays behind the check of its divisor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Union

from hemstitch.ir.dims import Dim
from hemstitch.ir.ops import OPS
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    AccumulateMatmul,
    Buffer,
    Check,
    Constant,
    Contract,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined, used
from hemstitch.machine.cpu_numbers import CPU

VALUES = (Let, Constant, Load)
Value = Union[Let, Constant, Load]
LEAST_ITERATIONS = 64  # of a loop, or rows of a nest, if known; of the algorithm
LEAST_GAIN = 2  # for each element, in the units of `OpRow.flops`; see `_gain`


def hoist_loop_invariants(kernel: Kernel) -> Kernel:
    """The kernel with such values hoisted; the same object if there are none."""
    names = {buffer.name for buffer in kernel.buffers}
    buffers: list[Buffer] = []
    phases = tuple(
        replace(phase, nests=tuple(_CodeMotion(names, buffers).nest(nest) for nest in phase.nests))
        for phase in kernel.phases
    )
    if not buffers:
        return kernel
    return replace(kernel, buffers=(*kernel.buffers, *buffers), phases=phases)


@dataclass(slots=True)
class _CodeMotion:
    """One nest. `names`: of all buffers; `buffers`: new ones for hoisted values; `bytes_left`: for
    more."""

    names: set[str]
    buffers: list[Buffer]
    bytes_left: int = CPU.hoisted_bytes

    def nest(self, nest: Nest) -> Nest:
        if any(isinstance(s, (Contract, AccumulateMatmul, Check)) for s in walk(nest.body)):
            return nest
        before = frozenset(name for statement in nest.prologue for name in defined(statement))
        prologue, body = nest.prologue, nest.body
        if _is_long(axis.extent for axis in nest.rows):
            changed = _changed((*nest.panels, *body, *nest.epilogue))
            scope = _InvariantScope(self, changed, before)
            body = tuple(scope.statements(body, frozenset(nest.rows)))
            prologue = (*prologue, *scope.moved)
        return replace(nest, prologue=prologue, body=tuple(self._loops(body, before)))

    def _loops(self, body: Iterable[Stmt], before: frozenset[str]) -> Iterator[Stmt]:
        """The statements with invariants of serial loops hoisted."""
        for statement in body:
            if isinstance(statement, Loop) and not statement.lanes:
                inside = statement.body
                if _is_long((statement.axis.extent,)):
                    scope = _InvariantScope(self, _changed(inside), before)
                    inside = tuple(scope.statements(inside, frozenset((statement.axis,))))
                    yield from scope.moved
                yield replace(statement, body=tuple(self._loops(inside, before)))
            else:
                yield statement
            before = before.union(defined(statement))

    def buffer(self, value: Let, axis: Axis) -> Buffer:
        name = f"{value.name}_same"
        while name in self.names:
            name += "_"
        self.names.add(name)
        why = "the same each time"
        self.buffers.append(Buffer(name, value.dtype, Role.TASK, axis.extent, why))
        return self.buffers[-1]


@dataclass(slots=True)
class _InvariantScope:
    """A loop, or the rows of a nest. `changed`: buffers that it writes; `before`: values defined
    outside; `moved`: the hoisted loops."""

    motion: _CodeMotion
    changed: frozenset[Buffer]
    before: frozenset[str]
    moved: list[Loop] = field(default_factory=list)

    def statements(self, body: Iterable[Stmt], varying: frozenset[Axis]) -> Iterator[Stmt]:
        for statement in body:
            if isinstance(statement, Loop) and statement.lanes:
                yield self._over_lanes(statement, varying)
            elif isinstance(statement, Loop):
                inside = self.statements(statement.body, varying | {statement.axis})
                yield replace(statement, body=tuple(inside))
            else:
                yield statement

    def _over_lanes(self, loop: Loop, varying: frozenset[Axis]) -> Loop:
        axis, motion = loop.axis, self.motion
        if loop.between is not None or axis.outer in varying or not isinstance(axis.extent, int):
            return loop
        invariant = self._invariants(loop.body, varying)
        rest = [s for s in loop.body if not isinstance(s, VALUES) or s.name not in invariant]
        read = frozenset(name for statement in rest for name in used(statement))
        buffered = [
            value for name, value in invariant.items() if isinstance(value, Let) and name in read
        ]
        definitions = _definitions(buffered, invariant)
        bytes_ = axis.extent * sum(value.dtype.bytes for value in buffered)
        if bytes_ > motion.bytes_left or _gain(definitions, buffered, read) < LEAST_GAIN:
            return loop
        motion.bytes_left -= bytes_
        buffers = {value.name: motion.buffer(value, axis) for value in buffered}
        rewriter = Rewriter({value.name: f"{value.name}_before" for value in definitions})
        stores = [Store(buffer, at(axis), name) for name, buffer in buffers.items()]
        hoisted = tuple(map(rewriter.statement, (*definitions, *stores)))
        self.moved.append(replace(loop, body=hoisted))
        loads = [Load(name, buffer, at(axis)) for name, buffer in buffers.items()]
        recomputed = [s for name, s in invariant.items() if name in read and name not in buffers]
        return replace(loop, body=(*loads, *recomputed, *rest))

    def _invariants(self, body: Iterable[Stmt], varying: frozenset[Axis]) -> Mapping[str, Value]:
        """The values that depend on no varying axis, in their order."""
        invariant: dict[str, Value] = {}
        for statement in body:
            match statement:
                case Let() | Constant():
                    is_invariant = True
                case Load(mask=None, buffer=buffer, index=index):
                    is_invariant = buffer not in self.changed and _is_invariant(index, varying)
                case _:
                    continue
            if is_invariant and all(
                name in invariant or name in self.before for name in used(statement)
            ):
                invariant[statement.name] = statement
        return invariant


def _is_long(extents: Iterable[Dim]) -> bool:
    iterations = [extent if isinstance(extent, int) else LEAST_ITERATIONS for extent in extents]
    return prod(iterations) >= LEAST_ITERATIONS


def _changed(statements: Iterable[Stmt]) -> frozenset[Buffer]:
    return frozenset(s.buffer for s in walk(statements) if isinstance(s, (Store, AccumulateInto)))


def _is_invariant(index: Index, varying: frozenset[Axis]) -> bool:
    return all(isinstance(v, Axis) and v not in varying for v, _ in index.terms)


def _definitions(buffered: Iterable[Let], invariant: Mapping[str, Value]) -> list[Value]:
    """The statements that compute these values, in order."""
    names: set[str] = set()
    worklist = [value.name for value in buffered]
    while worklist:
        name = worklist.pop()
        if name in invariant and name not in names:
            names.add(name)
            worklist.extend(used(invariant[name]))
    return [value for name, value in invariant.items() if name in names]


def _gain(needed: Iterable[Value], buffered: Sequence[Let], read: Collection[str]) -> int:
    """Operations and loads saved for each element, less the loads of hoisted values. A value that
    the rest of the loop uses is still loaded there."""
    work = -len(buffered)
    for value in needed:
        if isinstance(value, Let):
            work += OPS[value.op].flops
        elif isinstance(value, Load):
            work += value.name not in read
    return work
