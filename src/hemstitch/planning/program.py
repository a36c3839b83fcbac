"""What is compiled of one graph: a part for each call, and parts for once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Part = TypeVar("Part")  # a graph, then its plan


@dataclass(frozen=True, slots=True)
class Program(Generic[Part]):
    """`before`: what frozen weights decide, in order, each on the arguments and what those before
    it gave; it runs before the first call. `otherwise`: what can be built in any case."""

    each_call: Part
    before: tuple[Part, ...] = ()
    otherwise: Program[Part] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.each_call, *self.before)
