"""Convolving along one axis with a window of three elements, in fewer multiplications than there
are pairs of an element and a result (Winograd, "Arithmetic complexity of computations", chapter 5;
Lavin and Gray, section 4.1): sums of what a tile reads, times sums of the window, add up to its
results.

With a stride of two, the first and the last element of a window meet every second element, which is
a convolution with two elements without a stride; the middle one meets those between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Node, Op

WINDOW = 3
Matrix = tuple[
    tuple[float, ...], ...
]  # each row are the weights of a sum; some of them are positive


@dataclass(frozen=True, slots=True)
class Bilinear:
    """The results of a tile are `results` @ ((`tile` @ what it reads) * (`window` @ the window)).
    A tile begins to read `apart` elements behind the one before."""

    apart: int
    tile: Matrix
    window: Matrix
    results: Matrix

    @property
    def products(self) -> int:
        return len(self.tile)

    @property
    def reads(self) -> int:
        return len(self.tile[0])

    def tiles(self, results: int) -> int:
        """How many make so many results."""
        return -(-results // len(self.results))

    def room(self, tiles: int) -> int:
        """What so many read."""
        return self.apart * (tiles - 1) + self.reads


MOST_AT_ONCE = 4  # elements of a window, for two results


def toom_cook(window: int, results: int = 2) -> Bilinear:
    """Of a window of so many elements without a stride, so many results a tile. A product is the
    value of a polynomial at a point, whose powers say what it counts in each result; the last one
    is that at infinity."""
    points = _points(window + results - 2)
    tile, windows = [], []
    for point in points:
        others = _with_roots(root for root in points if root != point)
        scale = _at(others, point)
        sign = 1 if scale > 0 else -1
        tile.append([*(sign * root for root in others), Fraction()])
        windows.append([point**power / abs(scale) for power in range(window)])
    tile.append(_with_roots(points))
    windows.append([Fraction(power == window - 1) for power in range(window)])
    last = [Fraction(power == results - 1) for power in range(results)]
    result_rows = [[*(point**power for point in points), last[power]] for power in range(results)]
    return Bilinear(results, *map(_floats, (tile, windows, result_rows)))


def _points(count: int) -> Sequence[Fraction]:
    """Few and small ones round least (Barabasz et al., "Error analysis and improving the accuracy
    of Winograd convolution for deep neural networks", 2020). These five were the best of five sets
    that were tried."""
    near, far = Fraction(3, 4), Fraction(3, 2)
    small = [Fraction(), Fraction(1), Fraction(-1), Fraction(2)]
    return small[:count] if count <= len(small) else [Fraction(), near, -near, far, -far]


def one_by_one(window: int) -> Bilinear:
    """A product for each element of a window, which make one result."""
    unit = _floats([Fraction(i == j) for j in range(window)] for i in range(window))
    return Bilinear(1, unit, unit, ((1.0,) * window,))


def _with_roots(roots: Iterable[Fraction]) -> list[Fraction]:
    """The coefficients of such a polynomial, the last one 1."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = (
            [Fraction(), *coefficients],
            [*(root * c for c in coefficients), Fraction()],
        )
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients


def _at(coefficients: Sequence[Fraction], point: Fraction) -> Fraction:
    return sum((c * point**i for i, c in enumerate(coefficients)), Fraction())


def _floats(rows: Iterable[Iterable[Fraction]]) -> Matrix:
    return tuple(tuple(map(float, row)) for row in rows)


SHORT, LONG = toom_cook(WINDOW), toom_cook(WINDOW, 4)
_HALVES = ((1, 0, 0), (1, 0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 0))
# By the stride, from one to two: two results of a tile that reads so many elements.
FORWARD: Mapping[int, Bilinear] = {
    1: SHORT,
    2: Bilinear(
        4,
        tile=(
            *((1, 0, -1, 0, 0), (0, 0, 1, 0, 0), (0, 0, -1, 0, 1)),
            *((0, 1, 0, 0, 0), (0, 0, 0, 1, 0)),
        ),
        window=_HALVES,
        results=((1, 1, 0, 1, 0), (0, 1, 1, 0, 1)),
    ),
}
# For the gradient of what was read, with the window turned. With a stride of two a tile makes four,
# of which the first was in the middle of a window: there was one zero before it.
BACKWARD: Mapping[int, Bilinear] = {
    1: SHORT,
    2: Bilinear(
        2,
        tile=((1, -1, 0), (0, 1, 0), (0, -1, 1), (1, 0, 0), (0, 1, 0)),
        window=_HALVES,
        results=((0, 0, 0, 1, 0), (1, 1, 0, 0, 0), (0, 0, 0, 0, 1), (0, 1, 1, 0, 0)),
    ),
}


def transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def combined(builder: Builder, matrix: Matrix, values: Sequence[Node]) -> list[Node]:
    """A sum for each row."""
    return [_sum(builder, weights, values) for weights in matrix]


def _sum(builder: Builder, weights: Sequence[float], values: Sequence[Node]) -> Node:
    """What has the same weight is added up before it is multiplied."""
    alike: dict[float, list[tuple[bool, Node]]] = {}
    for weight, value in zip(weights, values, strict=True):
        if weight:
            alike.setdefault(abs(weight), []).append((weight < 0, value))
    terms = []
    for weight, signed in alike.items():
        is_less = all(minus for minus, _ in signed)
        within = [(minus is not is_less, value) for minus, value in signed]
        terms.append((is_less, _scaled(builder, _signed(builder, within), weight)))
    return _signed(builder, terms)


def _signed(builder: Builder, terms: Sequence[tuple[bool, Node]]) -> Node:
    """What is taken off comes last; something is not."""
    (_, total), *others = sorted(terms, key=lambda term: term[0])
    for is_less, value in others:
        total = builder.make(Op.SUB if is_less else Op.ADD, total, value)
    return total


def _scaled(builder: Builder, value: Node, weight: float) -> Node:
    if weight == 1:
        return value
    return builder.make(Op.MUL, value, builder.constant(weight, value.type.dtype, value.shape))
