"""Loop axes, and indices into memory as affine functions of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Union

from hemstitch.ir.dims import Dim, SymbolicDim, divides, quotient


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """A loop variable in [0, extent). Axes are compared by identity.

    `outer` and `limit`: of the inner axis of a tiled loop. The loop ends early where the whole
    index reaches the limit: it runs while outer * extent + inner < limit.
    """

    name: str
    extent: Dim
    outer: Axis | None = None
    limit: Dim | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Computed:
    """An i64 value of the program that is used as an index (a gather). It lies in [0, extent)."""

    name: str
    extent: Dim

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Window:
    """An index that is used only where it lies in [0, extent), as inside one operand of a
    concatenation. It stands for `index`; index arithmetic may rely on the bound. `expand` removes
    it."""

    index: Index
    extent: Dim

    @property
    def name(self) -> str:
        return f"[{self.index}]"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class AxisPart:
    """One axis of several that were collapsed to `axis`: axis // step % extent."""

    axis: Axis
    step: int
    extent: int

    @property
    def name(self) -> str:
        return f"{self.axis.name}/{self.step}%{self.extent}"

    def __str__(self) -> str:
        return self.name


Variable = Union[Axis, Computed, Window, AxisPart]


@dataclass(frozen=True, slots=True)
class Index:
    """constant + the sum of coefficient * variable. Terms are sorted by name, so that equal indices
    compare equal."""

    terms: tuple[tuple[Variable, Dim], ...] = ()
    constant: Dim = 0

    def __add__(self, other: Index) -> Index:
        if not other.terms:
            return self.shifted(other.constant)
        if not self.terms:
            return other.shifted(self.constant)
        return linear((self, other), (1, 1))

    def scaled(self, factor: Dim) -> Index:
        if factor == 0:
            return Index()
        if factor == 1:
            return self
        terms = tuple((variable, coefficient * factor) for variable, coefficient in self.terms)
        return Index(terms, self.constant * factor)

    def shifted(self, offset: Dim) -> Index:
        """The index plus `offset`."""
        return self if offset == 0 else Index(self.terms, self.constant + offset)

    def coefficient(self, variable: Variable) -> Dim:
        """The stride along `variable`; 0 if the index does not depend on it."""
        return next((factor for known, factor in self.terms if known == variable), 0)

    def substitute(self, values: Mapping[Variable, Index]) -> Index:
        """The index with `values` in the place of variables."""
        if values.keys().isdisjoint(variable for variable, _ in self.terms):
            return self
        indices = [values.get(variable, at(variable)) for variable, _ in self.terms]
        scales = [coefficient for _, coefficient in self.terms]
        return linear(indices, scales).shifted(self.constant)

    def __str__(self) -> str:
        parts = [
            str(variable) if coefficient == 1 else f"{_factor(coefficient)}*{variable}"
            for variable, coefficient in self.terms
        ]
        if self.constant != 0 or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def at(variable: Variable) -> Index:
    """The index that is `variable` itself."""
    return Index(((variable, 1),))


def expand(index: Index) -> Index:
    """The index with each window replaced by its own index."""
    if not any(isinstance(variable, Window) for variable, _ in index.terms):
        return index
    result = Index((), index.constant)
    for variable, coefficient in index.terms:
        inside = expand(variable.index) if isinstance(variable, Window) else at(variable)
        result += inside.scaled(coefficient)
    return result


def linear(indices: Iterable[Index], strides: Iterable[Dim]) -> Index:
    """The sum of index * stride."""
    total: dict[Variable, Dim] = {}
    constant: Dim = 0
    for index, stride in zip(indices, strides):
        if index.constant != 0:
            constant = constant + index.constant * stride
        for variable, coefficient in index.terms:
            total[variable] = total.get(variable, 0) + coefficient * stride
    return ordered(total, constant)


def ordered(coefficients: Mapping[Variable, Dim], constant: Dim) -> Index:
    """The index with these coefficients, without those that are 0."""
    terms = [term for term in coefficients.items() if term[1] != 0]
    if len(terms) > 1:
        terms.sort(key=lambda term: term[0].name)
    return Index(tuple(terms), constant)


def largest(index: Index) -> Dim:
    """An upper bound of an index whose coefficients are not negative."""
    total = index.constant
    for variable, coefficient in index.terms:
        total = total + coefficient * (variable.extent - 1)
    return total


def divide(index: Index, size: Dim) -> tuple[Index, Index] | None:
    """(index // size, index % size) if both are provably affine, else None."""
    whole = [(v, c) for v, c in index.terms if divides(size, c)]
    rest = [(v, c) for v, c in index.terms if not divides(size, c)]
    constant_whole: Dim = 0
    constant_rest = index.constant
    if isinstance(constant_rest, int) and isinstance(size, int):
        constant_whole, constant_rest = divmod(constant_rest, size)
    elif divides(size, constant_rest):
        constant_whole, constant_rest = quotient(constant_rest, size), 0
    remainder = Index(tuple(rest), constant_rest)
    if any(isinstance(c, int) and c < 0 for _, c in rest):
        return None
    slack = largest(remainder) - (size - 1)
    if isinstance(slack, SymbolicDim) or slack > 0:
        return None
    terms = tuple((variable, quotient(coefficient, size)) for variable, coefficient in whole)
    return Index(terms, constant_whole), remainder


def _factor(coefficient: Dim) -> str:
    return str(coefficient) if isinstance(coefficient, int) else f"({coefficient})"
