"""The lane loop that is being printed: which elements its copies and their lanes stand for."""

from __future__ import annotations

from dataclasses import dataclass

from hemstitch.codegen.llvm.emitter import Value
from hemstitch.ir.dims import divides
from hemstitch.kernel.index import Axis, Computed, Index


@dataclass(frozen=True, slots=True)
class Crossed:
    """The loop around, where the two are printed together: its index in each copy; `count`: the
    lanes in use, the first ones."""

    axis: Axis
    indices: tuple[Value, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """Its axis, the first lane of each copy (one for all, where loops are crossed), the lanes in
    use; `is_single`: that is known to be one."""

    axis: Axis
    firsts: tuple[Value, ...]
    mask: Value | None
    is_single: bool
    crossed: Crossed | None = None

    def index_of(self, axis: Axis, copy: int) -> Value | None:
        """Of the copy's first lane, where that is the copies' own affair."""
        if axis is self.axis:
            return self.firsts[copy]
        crossed = self.crossed
        return crossed.indices[copy] if crossed is not None and crossed.axis is axis else None

    def steps_by_four(self, index: Index) -> bool:
        """Groups of vectors start at multiples of four and walk one by one (philox.uniform4)."""
        for variable, coefficient in index.terms:
            if variable is self.axis:
                if coefficient != 1:
                    return False
            elif isinstance(variable, Computed) or not divides(4, coefficient):
                return False
        return index.coefficient(self.axis) == 1 and divides(4, index.constant)
