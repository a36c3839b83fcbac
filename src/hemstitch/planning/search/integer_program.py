"""The selection of patterns as a 0/1 program: minimise the sum of the costs of the chosen columns,
within bounds on each row's sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Terms = tuple[tuple[int, int], ...]  # columns with their coefficients


@dataclass(frozen=True, slots=True)
class Row:
    lower: int | None
    upper: int | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    costs: tuple[float, ...]
    rows: tuple[Row, ...]


def canonical(program: IntegerProgram) -> tuple[IntegerProgram, tuple[int, ...]]:
    """The program with its columns in an order that does not depend on their numbers, as far as
    colours distinguish them; and the old column for each new one. Programs with equal canonical
    forms have the same solutions: the form is the whole program, not a digest.

    Colour refinement (Weisfeiler and Leman 1968) on columns and rows: each takes the colours of its
    neighbours into its own until no more colours appear. Ties keep their order.
    """
    count = len(program.costs)
    rows_of: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, row in enumerate(program.rows):
        for column, coefficient in row.terms:
            rows_of[column].append((number, coefficient))
    columns = _ranked(program.costs)
    bounds = [(row.lower is None, row.lower or 0, row.upper or 0) for row in program.rows]
    rows, classes = _ranked(bounds), 0
    while len(set(columns)) > classes:
        classes = len(set(columns))
        rows = _refined(rows, [row.terms for row in program.rows], columns)
        columns = _refined(columns, rows_of, rows)
    order = sorted(range(count), key=lambda column: columns[column])
    place = {column: new for new, column in enumerate(order)}
    renumbered = [
        Row(row.lower, row.upper, tuple(sorted((place[c], k) for c, k in row.terms)))
        for row in program.rows
    ]
    renumbered.sort(key=lambda row: (row.lower is None, row.lower or 0, row.upper or 0, row.terms))
    return IntegerProgram(tuple(program.costs[c] for c in order), tuple(renumbered)), tuple(order)


def _refined(
    own: Sequence[int], neighbours: Sequence[Sequence[tuple[int, int]]], colours: Sequence[int]
) -> list[int]:
    keys = [
        (mine, tuple(sorted((colours[other], coefficient) for other, coefficient in edges)))
        for mine, edges in zip(own, neighbours)
    ]
    return _ranked(keys)


def _ranked(keys: Sequence[float] | Sequence[tuple[object, ...]]) -> list[int]:
    """Equal keys get equal numbers, in the order of the keys."""
    rank = {key: number for number, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return [rank[key] for key in keys]
