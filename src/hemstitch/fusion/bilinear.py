"""Convolving along one axis with a window of three elements, in fewer multiplications than there
are pairs of an element and a result (Winograd, "Arithmetic complexity of computations", chapter 5;
Lavin and Gray, section 4.1): sums of what a tile reads, times sums of the window, add up to its
results.

With a stride of two, the first and the last element of a window meet every second element, which is
a convolution with two elements without a stride; the middle one meets those between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


_DENSE = Bilinear(
    2,
    tile=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
    window=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    results=((1, 1, 1, 0), (0, 1, -1, 1)),
)
_HALVES = ((1, 0, 0), (1, 0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 0))
# By the stride: two results of a tile that reads so many elements.
FORWARD: Mapping[int, Bilinear] = {
    1: _DENSE,
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
    1: _DENSE,
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
    alike: dict[float, list[tuple[float, Node]]] = {}
    for weight, value in zip(weights, values, strict=True):
        if weight:
            alike.setdefault(abs(weight), []).append((weight, value))
    first, *others = (
        _scaled(builder, _signed(builder, terms), weight) for weight, terms in alike.items()
    )
    for other in others:
        first = builder.make(Op.ADD, first, other)
    return first


def _signed(builder: Builder, terms: Sequence[tuple[float, Node]]) -> Node:
    (_, total), *others = sorted(terms, key=lambda term: term[0] < 0)
    for weight, value in others:
        total = builder.make(Op.ADD if weight > 0 else Op.SUB, total, value)
    return total


def _scaled(builder: Builder, value: Node, weight: float) -> Node:
    if weight == 1:
        return value
    return builder.make(Op.MUL, value, builder.constant(weight, value.type.dtype, value.shape))
