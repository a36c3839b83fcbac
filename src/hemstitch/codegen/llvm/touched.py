"""What a statement touches, and so needs a slot of the nest: buffers and sizes."""

from __future__ import annotations

from collections.abc import Iterator

from hemstitch.ir.dims import Dim
from hemstitch.kernel.index import Index
from hemstitch.kernel.nodes import AccumulateInto, Buffer, Load, Loop, Stmt, Store


def buffers_of(statement: Stmt) -> Iterator[Buffer]:
    match statement:
        case Load() | Store():
            yield statement.buffer
        case AccumulateInto():
            yield statement.buffer
            if statement.positions is not None:
                yield statement.positions
        case _:
            return


def sizes_of(statement: Stmt) -> Iterator[Dim]:
    """Every size a statement mentions."""
    if isinstance(statement, Loop):
        yield statement.axis.extent
        if statement.axis.limit is not None:
            yield statement.axis.limit
    for name in ("index", "position"):
        index = getattr(statement, name, None)
        if isinstance(index, Index):
            yield index.constant
            for _, coefficient in index.terms:
                yield coefficient
