"""Which sizes a statement mentions: each needs a slot of the nest."""

from __future__ import annotations

from collections.abc import Iterator

from hemstitch.ir.dims import Dim
from hemstitch.kernel.index import Index
from hemstitch.kernel.nodes import Contract, Loop, Stmt


def sizes_of(statement: Stmt) -> Iterator[Dim]:
    """Every size a statement mentions."""
    if isinstance(statement, Loop | Contract):
        yield statement.axis.extent
        if statement.axis.limit is not None:
            yield statement.axis.limit
    for name in ("index", "position"):
        index = getattr(statement, name, None)
        if isinstance(index, Index):
            yield index.constant
            for _, coefficient in index.terms:
                yield coefficient
