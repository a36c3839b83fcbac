"""Common-subexpression elimination in a nest. It also fuses adjacent lane loops that load the same
elements. The left operands of Winograd's matmuls need both: 24 sums, each of up to 16 of 24
elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import copysign
from typing import Union

from hemstitch.ir.graph import Op
from hemstitch.kernel_ir.dependence import PURE
from hemstitch.kernel_ir.index import at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter

Value = Union[Let, Constant, Position, Random, Load]


def eliminate_common_subexpressions(kernel: Kernel) -> Kernel:
    """The kernel with common subexpressions of each nest computed once."""
    phases = (
        replace(phase, nests=tuple(map(without_common_subexpressions, phase.nests)))
        for phase in kernel.phases
    )
    return replace(kernel, phases=tuple(phases))


def without_common_subexpressions(nest: Nest) -> Nest:
    """The nest with common subexpressions computed once."""
    changed = frozenset(
        statement.buffer
        for part in nest.parts
        for statement in walk(part)
        if isinstance(statement, (Store, AccumulateInto))
    )
    task = _ValueScope(changed)
    prologue = tuple(task.statements(nest.prologue))
    panels, body, epilogue = (
        tuple(task.inner().statements(part)) for part in (nest.panels, nest.body, nest.epilogue)
    )
    return replace(nest, prologue=prologue, panels=panels, body=body, epilogue=epilogue)


@dataclass(slots=True)
class _ValueScope:
    """The values available at one place. `changed`: buffers that the nest writes; `known`: names of
    values by their key; `names`: replacements of eliminated values; `definitions`: by name."""

    changed: frozenset[Buffer]
    known: dict[object, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, Stmt] = field(default_factory=dict)

    def inner(self) -> _ValueScope:
        return _ValueScope(self.changed, dict(self.known), dict(self.names), dict(self.definitions))

    def statements(self, body: Iterable[Stmt]) -> Iterator[Stmt]:
        for statement in _fused_loops(body):
            rewriter = Rewriter(self.names)
            if isinstance(statement, Loop):
                renamed = rewriter.statement(replace(statement, body=()))
                assert isinstance(renamed, Loop)
                yield replace(renamed, body=tuple(self.inner().statements(statement.body)))
                continue
            renamed = rewriter.statement(statement)
            if isinstance(renamed, PURE) and (name := self._known(renamed)) is not None:
                self.names[renamed.name] = name
            else:
                yield renamed

    def _known(self, statement: Value) -> str | None:
        """The name of an available equal value, or None; the statement is available from now on."""
        key = value_key(statement)
        name = self._masked_load(statement) or self.known.get(key)
        if name is not None:
            return name
        self.definitions[statement.name] = statement
        if not isinstance(statement, Load) or statement.buffer not in self.changed:
            self.known[key] = statement.name
        return None

    def _masked_load(self, statement: Value) -> str | None:
        """The masked load that a select between it and zero is equal to."""
        match statement:
            case Let(_, Op.WHERE, (mask, value, fallback)):
                match self.definitions.get(value), self.definitions.get(fallback):
                    case Load(mask=known), Constant(value=zero) if known == mask and _is_zero(zero):
                        return value
        return None


def value_key(statement: Value) -> object:
    """A key that is equal for equal values, except for loads from buffers that change in
    between."""
    if isinstance(statement, Constant):
        return repr(statement.value), statement.dtype  # 0.0 equals -0.0
    return replace(statement, name="")


def _is_zero(value: float) -> bool:
    return value == 0 and copysign(1, value) > 0


def _fused_loops(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """The statements with adjacent lane loops fused, where the second one loads what the first one
    does."""
    last: Stmt | None = None
    for statement in body:
        fused = _fused(last, statement)
        if fused is None and last is not None:
            yield last
        last = fused or statement
    if last is not None:
        yield last


def _fused(first: Stmt | None, second: Stmt) -> Loop | None:
    match first, second:
        case Loop(lanes=True, between=None), Loop(lanes=True, between=None):
            axis, second_axis = first.axis, second.axis
        case _:
            return None
    if (axis.extent, axis.outer, axis.limit) != (
        second_axis.extent,
        second_axis.outer,
        second_axis.limit,
    ):
        return None
    rewriter = Rewriter({}, lambda index: index.substitute({second_axis: at(axis)}))
    body = [rewriter.statement(statement) for statement in second.body]
    loaded, stored = (
        {s.buffer for s in first.body if isinstance(s, kind)} for kind in (Load, Store)
    )
    second_loaded, second_stored = (
        {s.buffer for s in body if isinstance(s, kind)} for kind in (Load, Store)
    )
    is_plain = all(isinstance(s, (*PURE, Store)) for s in (*first.body, *body))
    is_independent = stored.isdisjoint(second_loaded | second_stored) and loaded.isdisjoint(
        second_stored
    )
    loads = {(s.buffer, s.index) for s in first.body if isinstance(s, Load)}
    shares_loads = any((s.buffer, s.index) in loads for s in body if isinstance(s, Load))
    if not (is_plain and is_independent and shares_loads):
        return None
    return replace(first, body=(*first.body, *body))
