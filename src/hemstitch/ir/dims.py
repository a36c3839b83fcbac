"""Sizes that may not be known until a call: integers and integer polynomials over named symbols.

A `Dim` is a Python int whenever the value is known, else a `SymbolicDim`, kept in a canonical form
(a sum of products with integer coefficients) so that equal sizes are equal objects to `==`.
Division that does not cancel becomes an opaque factor (`Quotient`, `Remainder`, `Choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add, mul
from typing import Union

Dim = Union[int, "SymbolicDim"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that a call brings along, e.g. the batch size; or any number (`signed`)."""

    name: str
    signed: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(numerator / denominator), where the division did not cancel."""

    numerator: SymbolicDim
    denominator: Dim

    def __str__(self) -> str:
        return f"(({self.numerator})//({self.denominator}))"


@dataclass(frozen=True, slots=True)
class Remainder:
    """numerator - denominator * floor(numerator / denominator)."""

    numerator: SymbolicDim
    denominator: Dim

    def __str__(self) -> str:
        return f"(({self.numerator})%({self.denominator}))"


@dataclass(frozen=True, slots=True)
class Choice:
    """The smallest or largest of several sizes; `function` is "min" or "max"."""

    function: str
    choices: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.choices))})"


Factor = Union[Symbol, Quotient, Remainder, Choice]
Term = tuple[Factor, ...]  # a product of factors, sorted by their text


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """sum of coefficient * product(factors) with at least one factor; never a plain number."""

    terms: tuple[tuple[Term, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _from_terms([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        return _from_terms(
            (tuple(sorted(a + b, key=str)), m * n) for a, m in self.terms for b, n in _terms(other)
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        whole, rest = _divide(self, other)
        if isinstance(rest, int) and isinstance(other, int):
            return whole + rest // other
        return whole if rest == 0 else whole + _single(Quotient(_symbolic(rest), other))

    def __mod__(self, other: Dim) -> Dim:
        _, rest = _divide(self, other)
        if isinstance(rest, int) and isinstance(other, int):
            return rest % other
        return 0 if rest == 0 else _single(Remainder(_symbolic(rest), other))

    def __str__(self) -> str:
        return text_of(self)


def symbol(name: str, signed: bool = False) -> SymbolicDim:
    return _single(Symbol(name, signed))


def choice(function: str, choices: Iterable[Dim]) -> Dim:
    """min or max of sizes, folded when all are known."""
    known = tuple(choices)
    if all(isinstance(size, int) for size in known):
        return (min if function == "min" else max)(known)  # type: ignore[type-var]
    return _single(Choice(function, known))


def text_of(size: Dim, written: Callable[[Factor], str] = str) -> str:
    """`size` as text, its factors as `written` has them."""
    if isinstance(size, int):
        return str(size)
    return " + ".join(_term_text(map(written, term), count) for term, count in size.terms)


def product(sizes: Iterable[Dim]) -> Dim:
    return reduce(mul, sizes, 1)


def total(sizes: Iterable[Dim]) -> Dim:
    """Their sum."""
    return reduce(add, sizes, 0)


def divides(divisor: Dim, size: Dim) -> bool:
    """True only when it is certain for every value of the symbols."""
    if isinstance(divisor, int) and isinstance(size, int):
        return divisor != 0 and size % divisor == 0
    if isinstance(size, int):
        return False
    return _divide(size, divisor)[1] == 0


def quotient(size: Dim, divisor: Dim) -> Dim:
    """floor(size / divisor)."""
    if isinstance(size, int) and not isinstance(divisor, int):
        return _single(Quotient(_symbolic(size), divisor))
    return size // divisor  # type: ignore[operator]


def remainder(size: Dim, divisor: Dim) -> Dim:
    """size - divisor * floor(size / divisor)."""
    if isinstance(size, int) and not isinstance(divisor, int):
        return _single(Remainder(_symbolic(size), divisor))
    return size % divisor  # type: ignore[operator]


def may_be_negative(size: Dim) -> bool:
    """Something is subtracted in it, or it depends on a number that may be negative."""
    if isinstance(size, int):
        return size < 0
    return any(count < 0 or any(map(_may_be_negative, term)) for term, count in size.terms)


def _may_be_negative(factor: Factor) -> bool:
    match factor:
        case Symbol(_, signed):
            return signed
        case Quotient(numerator, denominator):
            return may_be_negative(numerator) or may_be_negative(denominator)
        case Remainder(_, denominator):
            return may_be_negative(denominator)
        case Choice("max", choices):
            return all(map(may_be_negative, choices))
        case Choice(_, choices):
            return any(map(may_be_negative, choices))


def is_polynomial(size: SymbolicDim) -> bool:
    """Nothing in it is divided or chosen."""
    return all(isinstance(factor, Symbol) for term, _ in size.terms for factor in term)


def may_be_empty(size: Dim) -> bool:
    """PyTorch traces no size of 0 or 1 as a symbol, but for those that only the data decide, which
    it calls u0, u1, and so on."""
    if isinstance(size, int):
        return size <= 0
    factors = [factor for term, _ in size.terms for factor in term]
    is_plain = all(isinstance(f, Symbol) and not f.name.startswith("u") for f in factors)
    return not is_plain or may_be_negative(size)


def without_floors(step: Dim, shape: tuple[Dim, ...]) -> Dim:
    """`step`, with `max(1, x)` as x where x divides one of `shape`: they differ where x is 0, and
    then what has that shape is empty."""
    if isinstance(step, int):
        return step
    terms = ((product(_without_floor(f, shape) for f in term), n) for term, n in step.terms)
    return total(term * count for term, count in terms)


def _without_floor(factor: Factor, shape: tuple[Dim, ...]) -> Dim:
    match factor:
        case Choice("max", (1, size) | (size, 1)):
            plain = without_floors(size, shape)
            if any(divides(plain, whole) for whole in shape):
                return plain
    return _single(factor)


def known(size: Dim) -> int:
    """A size that cannot depend on a call, where it was made sure of that."""
    assert isinstance(size, int)
    return size


def symbols(size: Dim) -> set[str]:
    """The names of all symbols that `size` depends on."""
    if isinstance(size, int):
        return set()
    return {name for term, _ in size.terms for factor in term for name in _factor_symbols(factor)}


def evaluate(size: Dim, values: Mapping[str, int]) -> int:
    """The number that `size` is, given one for each symbol."""
    if isinstance(size, int):
        return size
    return sum(
        count * reduce(mul, (_factor_value(factor, values) for factor in term), 1)
        for term, count in size.terms
    )


def _factor_value(factor: Factor, values: Mapping[str, int]) -> int:
    match factor:
        case Symbol(name, _):
            return values[name]
        case Quotient(numerator, denominator):
            return evaluate(numerator, values) // evaluate(denominator, values)
        case Remainder(numerator, denominator):
            return evaluate(numerator, values) % evaluate(denominator, values)
        case Choice(function, choices):
            picked: Callable[..., int] = min if function == "min" else max
            return picked(evaluate(size, values) for size in choices)


def _factor_symbols(factor: Factor) -> set[str]:
    match factor:
        case Symbol(name, _):
            return {name}
        case Quotient(numerator, denominator) | Remainder(numerator, denominator):
            return symbols(numerator) | symbols(denominator)
        case Choice(_, choices):
            return {name for size in choices for name in symbols(size)}


def _single(factor: Factor) -> SymbolicDim:
    return SymbolicDim((((factor,), 1),))


def _symbolic(size: Dim) -> SymbolicDim:
    return SymbolicDim((((), size),)) if isinstance(size, int) else size


def _terms(size: Dim) -> tuple[tuple[Term, int], ...]:
    if isinstance(size, int):
        return (((), size),)
    return size.terms


def _from_terms(terms: Iterable[tuple[Term, int]]) -> Dim:
    total: dict[Term, int] = {}
    for term, count in terms:
        total[term] = total.get(term, 0) + count
    kept = {term: count for term, count in total.items() if count}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    return SymbolicDim(tuple(sorted(kept.items(), key=lambda item: tuple(map(str, item[0])))))


def _divide(size: SymbolicDim, divisor: Dim) -> tuple[Dim, Dim]:
    """(whole, rest) with size == whole * divisor + rest; terms that divide go to whole. A sum of
    several divides as a whole or not at all."""
    if not isinstance(divisor, int) and len(divisor.terms) > 1:
        exact = _divided(size, divisor)
        return (0, size) if exact is None else (exact, 0)
    ((by, count),) = _terms(divisor)
    whole: list[tuple[Term, int]] = []
    rest: list[tuple[Term, int]] = []
    for term, coefficient in size.terms:
        left = _remove(term, by)
        if left is not None and coefficient % count == 0:
            whole.append((left, coefficient // count))
        else:
            rest.append((term, coefficient))
    return _from_terms(whole), _from_terms(rest)


def _divided(size: SymbolicDim, divisor: SymbolicDim) -> Dim | None:
    """Long division, from the leading terms down."""
    by, count = _leading(divisor)
    whole: Dim = 0
    rest: Dim = size
    while rest != 0:
        term, coefficient = _leading(rest)
        left = _remove(term, by)
        if left is None or coefficient % count:
            return None
        part = _from_terms([(left, coefficient // count)])
        whole, rest = whole + part, rest - divisor * part
    return whole


def _leading(size: Dim) -> tuple[Term, int]:
    """Of the most factors; among those in the order of the alphabet, which products keep."""
    return max(_terms(size), key=lambda term: (len(term[0]), [*map(str, term[0])]))


def _remove(term: Term, factors: Term) -> Term | None:
    left = list(term)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _term_text(texts: Iterable[str], count: int) -> str:
    factors = [*texts]
    if count != 1 or not factors:
        factors.insert(0, str(count))
    return "*".join(factors)
