"""Definitions and uses of statements, and statements rewritten with other names, indices or
buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hemstitch.kernel_ir.index import Computed, Index
from hemstitch.kernel_ir.nodes import (
    BLOCKS,
    Accumulate,
    AccumulateInto,
    AccumulateMatmul,
    Buffer,
    Check,
    Constant,
    Contract,
    Finish,
    Let,
    Load,
    Loop,
    Position,
    Random,
    Scan,
    Stmt,
    Store,
)

NAMED = (Let, Constant, Position, Random, Load, Scan, Contract)


def defined(statement: Stmt) -> Iterator[str]:
    """The names that a statement defines."""
    if isinstance(statement, NAMED):
        yield statement.name
    elif isinstance(statement, Finish):
        yield statement.name
        if statement.position_name is not None:
            yield statement.position_name


def used(statement: Stmt) -> Iterator[str]:
    """The names that a statement and its body use."""
    for place in ("index", "position"):
        index = getattr(statement, place, None)
        if isinstance(index, Index):
            yield from (v.name for v, _ in index.terms if isinstance(v, Computed))
    match statement:
        case Let(operands=operands):
            yield from operands
        case Random(seed=name) | Check(condition=name):
            yield name
        case Load(mask=mask) if mask is not None:
            yield mask
        case Store() | Accumulate() | Scan() | AccumulateInto():
            yield statement.value
            order = getattr(statement, "order", None)
            yield from () if order is None else (order,)
        case (
            Contract(left=first, right=last)
            | AccumulateMatmul(left=first, right=last)
            | Loop(between=(first, last))
        ):
            yield from (first, last)
        case _:
            pass
    if isinstance(statement, BLOCKS):
        for inner in statement.body:
            yield from used(inner)


@dataclass(frozen=True, slots=True)
class Rewriter:
    """`names`: new names of values; `index`: maps an index; `place`: maps a buffer and an already
    mapped index to a new buffer and index."""

    names: Mapping[str, str]
    index: Callable[[Index], Index] = lambda index: index
    place: Callable[[Buffer, Index], tuple[Buffer, Index]] = lambda buffer, index: (buffer, index)

    def statement(self, statement: Stmt) -> Stmt:
        new: dict[str, Any] = {
            field.name: self._field(getattr(statement, field.name)) for field in fields(statement)
        }
        if isinstance(statement, AccumulateInto) and statement.positions is not None:
            new["positions"], value_index = self.place(statement.positions, new["index"])
            _, position_index = self.place(statement.buffer, new["index"])
            assert value_index == position_index, "values and positions have one index"
        if isinstance(statement, Load | Store | AccumulateInto):
            new["buffer"], new["index"] = self.place(statement.buffer, new["index"])
        return replace(statement, **new)

    def _field(self, value: object) -> object:
        if isinstance(value, str):
            return self.names.get(value, value)
        if isinstance(value, Index):
            return self.index(self._renamed(value))
        if isinstance(value, tuple):
            return tuple(self._field(v) if isinstance(v, str) else self.statement(v) for v in value)
        return value

    def _renamed(self, index: Index) -> Index:
        if not any(variable.name in self.names for variable, _ in index.terms):
            return index
        total = Index((), index.constant)
        for variable, step in index.terms:
            if isinstance(variable, Computed) and variable.name in self.names:
                variable = replace(variable, name=self.names[variable.name])
            total += Index(((variable, step),))
        return total
