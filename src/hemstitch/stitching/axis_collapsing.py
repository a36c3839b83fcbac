"""Loop collapsing: adjacent loop axes that every access traverses contiguously become one axis. A
contiguous [8, 128, 768] becomes [786432]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from hemstitch.ir.dims import Dim, product
from hemstitch.kernel_ir.index import Axis, Index, Variable, ordered
from hemstitch.stitching.refusal import Refused


@dataclass(frozen=True, slots=True)
class CollapsedAxes:
    """`merged[axis]`: the original axes that a collapsed axis stands for, outermost first. Axes
    without an entry are unchanged."""

    merged: dict[Axis, tuple[Axis, ...]]

    def axes(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The collapsed axes that `axes` make up, in the order of their first parts."""
        whole = {part: axis for axis, parts in self.merged.items() for part in parts}
        return tuple(dict.fromkeys(whole.get(axis, axis) for axis in axes))

    def index(self, index: Index) -> Index:
        """`index` in terms of collapsed axes. Raises Refused where it does not traverse one as a
        whole."""
        terms = dict(index.terms)
        for axis, parts in self.merged.items():
            step = scale = terms.get(parts[-1], 0)
            for part in reversed(parts):
                if terms.pop(part, 0) != scale:
                    raise Refused("fold", f"{index} does not walk {axis} as one")
                scale = scale * part.extent
            terms[axis] = step
        return ordered(terms, index.constant)


def collapse(
    axes: Iterable[Axis],
    addresses: Sequence[Index],
    domains: Sequence[frozenset[Axis]],
) -> CollapsedAxes:
    """Collapses adjacent axes a, b where every address has stride(a) == stride(b) * extent(b), and
    every domain (the loops of a root, its reduced axes) contains both or neither."""
    merged: dict[Axis, tuple[Axis, ...]] = {}
    current = dict.fromkeys(axes)
    steps = [dict(address.terms) for address in dict.fromkeys(addresses)]
    domains_of = {
        axis: frozenset(n for n, d in enumerate(domains) if axis in d) for axis in current
    }
    while True:
        pairs = ((a, b) for a, b in permutations(current, 2) if domains_of[a] == domains_of[b])
        neighbours = next(((a, b) for a, b in pairs if _is_contiguous(a, b, steps)), None)
        if neighbours is None:
            return CollapsedAxes(merged)
        a, b = neighbours
        parts = (*merged.pop(a, (a,)), *merged.pop(b, (b,)))
        axis = Axis("".join(part.name for part in parts), product(part.extent for part in parts))
        merged[axis], domains_of[axis] = parts, domains_of[a]
        for step in steps:
            step[axis] = step.get(b, 0)
        current = dict.fromkeys(axis if x is a else x for x in current if x is not b)


def _is_contiguous(a: Axis, b: Axis, steps: Sequence[Mapping[Variable, Dim]]) -> bool:
    """Whether `a` continues `b` at every address. `steps`: of each address, by axis."""
    return all(step.get(a, 0) == step.get(b, 0) * b.extent for step in steps)
