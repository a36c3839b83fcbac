"""What is searched: numbered vertices, the values that pass between them, and what a plan is.

Nothing here knows what a vertex computes. Two callbacks do: they say whether a pattern can be
one kernel, and what it costs besides its traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassedValue:
    """Something that passes from one vertex to others, or from outside."""

    bytes: int
    maker: int | None  # None: an argument, already in memory
    readers: tuple[int, ...]
    is_kept: bool = False  # in memory whatever the plan: results, what library calls read in place


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
    launch_bytes: int = 0  # what a launch costs, in bytes that could have been moved meanwhile
    sizes: tuple[int, ...] = ()  # how many vertices each one stands for; none: one each

    def size(self, vertices: frozenset[int]) -> int:
        return sum(self.sizes[v] for v in vertices) if self.sizes else len(vertices)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Vertices that become one kernel. It stores what others load of what `vertices` make, and
    computes `rematerialised`, cheap vertices, for itself alone."""

    vertices: frozenset[int]
    rematerialised: frozenset[int] = frozenset()

    @property
    def computed(self) -> frozenset[int]:
        return self.vertices | self.rematerialised


@dataclass(frozen=True, slots=True)
class PatternPlan:
    """Patterns in an order in which they can run. Each vertex belongs to one of them; a cheap one
    to none if all that read it make it again."""

    patterns: tuple[Pattern, ...]
    is_optimal: bool = False  # no better plan can be made of the candidates


Legal = Callable[[Pattern], bool]
Penalty = Callable[[Pattern], float]


def always(pattern: Pattern) -> bool:
    return True


def nothing(pattern: Pattern) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Oracle:
    """`legal` may be slow: it is asked once for each pattern, and only for one about to be chosen.
    `penalty` is asked for every set that is weighed; in bytes, as `launch_bytes` is."""

    legal: Legal = always
    penalty: Penalty = nothing
