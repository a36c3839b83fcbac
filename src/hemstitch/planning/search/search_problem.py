"""The search problem: numbered vertices, the values that pass between them, and plans.

The problem does not know what a vertex computes. Two callbacks do: whether a pattern can be one
kernel, and its cost besides its traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassedValue:
    """A value that passes from one vertex, or from outside, to others."""

    bytes: int
    maker: int | None  # None: an argument, already in memory
    readers: tuple[int, ...]
    is_kept: bool = False  # in memory in every plan: results, operands of library calls


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """Vertices 0..count-1 in a topological order of `orders`."""

    count: int
    orders: tuple[tuple[int, int], ...]  # every must-run-before pair, of data and other
    values: tuple[PassedValue, ...]
    fixed: frozenset[int] = frozenset()  # library calls: each a pattern of its own
    together: tuple[frozenset[int], ...] = ()  # vertices that may not be separated
    cheap: frozenset[int] = frozenset()  # pure: several patterns may compute what one could store
    most: int = 160  # vertices of one pattern
    launch_bytes: int = 0  # cost of a launch, in bytes of memory traffic
    sizes: tuple[int, ...] = ()  # how many vertices each one stands for; none: one each

    def size(self, vertices: frozenset[int]) -> int:
        return sum(self.sizes[v] for v in vertices) if self.sizes else len(vertices)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Vertices that become one kernel. The kernel stores the values of `vertices` that others load,
    and computes the cheap vertices `rematerialised` for itself alone."""

    vertices: frozenset[int]
    rematerialised: frozenset[int] = frozenset()

    @property
    def computed(self) -> frozenset[int]:
        return self.vertices | self.rematerialised


@dataclass(frozen=True, slots=True)
class PatternPlan:
    """Patterns in execution order. Each vertex belongs to one of them, except for a cheap vertex
    that all its readers rematerialise."""

    patterns: tuple[Pattern, ...]
    is_optimal: bool = False  # no plan of the candidates is better


Legal = Callable[[Pattern], bool]
Penalty = Callable[[Pattern], float]


def always(pattern: Pattern) -> bool:
    return True


def nothing(pattern: Pattern) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Oracle:
    """`legal` may be slow: it is called once for each pattern, and only for one about to be chosen.
    `penalty` is called for every scored set; in bytes, like `launch_bytes`."""

    legal: Legal = always
    penalty: Penalty = nothing
