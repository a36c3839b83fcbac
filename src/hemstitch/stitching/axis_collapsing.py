"""Loop axes that every access walks as one become one: contiguous [8, 128, 768] is [786432]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from hemstitch.ir.dims import Dim, product
from hemstitch.kernel_ir.index import Axis, Index, Variable, ordered
from hemstitch.stitching.refusal import Refused


@dataclass(frozen=True, slots=True)
class Folding:
    """`merged[axis]`: the original axes it stands for, outermost first; those not named stay."""

    merged: dict[Axis, tuple[Axis, ...]]

    def axes(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The folded axes that `axes` make up, in the order of their first part."""
        whole = {part: axis for axis, parts in self.merged.items() for part in parts}
        return tuple(dict.fromkeys(whole.get(axis, axis) for axis in axes))

    def index(self, index: Index) -> Index:
        """The same position in terms of folded axes."""
        found = dict(index.terms)
        for axis, parts in self.merged.items():
            step = scale = found.get(parts[-1], 0)
            for part in reversed(parts):
                if found.pop(part, 0) != scale:
                    raise Refused("fold", f"{index} does not walk {axis} as one")
                scale = scale * part.extent
            found[axis] = step
        return ordered(found, index.constant)


def fold(
    axes: Iterable[Axis],
    addresses: Sequence[Index],
    domains: Sequence[frozenset[Axis]],
) -> Folding:
    """Merge neighbours while every address has stride(a) == stride(b) * extent(b) and every
    domain (loops of a root, what it reduces) has both or neither."""
    merged: dict[Axis, tuple[Axis, ...]] = {}
    current = dict.fromkeys(axes)
    steps = [dict(address.terms) for address in dict.fromkeys(addresses)]
    loops = {axis: frozenset(n for n, d in enumerate(domains) if axis in d) for axis in current}
    while True:
        pairs = ((a, b) for a, b in permutations(current, 2) if loops[a] == loops[b])
        pair = next(((a, b) for a, b in pairs if _walks_as_one(a, b, steps)), None)
        if pair is None:
            return Folding(merged)
        a, b = pair
        parts = (*merged.pop(a, (a,)), *merged.pop(b, (b,)))
        axis = Axis("".join(part.name for part in parts), product(part.extent for part in parts))
        merged[axis], loops[axis] = parts, loops[a]
        for step in steps:
            step[axis] = step.get(b, 0)
        current = dict.fromkeys(axis if x is a else x for x in current if x is not b)


def _walks_as_one(a: Axis, b: Axis, steps: Sequence[Mapping[Variable, Dim]]) -> bool:
    return all(step.get(a, 0) == step.get(b, 0) * b.extent for step in steps)
