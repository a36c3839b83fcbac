"""Loop axes that every access walks as one become one: contiguous [8, 128, 768] is [786432]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

from hemstitch.ir.dims import product
from hemstitch.kernel.index import Axis, Index, at, ordered
from hemstitch.stitch.refusal import Refused


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
    addresses, domains = list(dict.fromkeys(addresses)), list(dict.fromkeys(domains))
    while True:
        pair = next(
            (
                (a, b)
                for a, b in permutations(current, 2)
                if _walks_as_one(a, b, addresses, domains)
            ),
            None,
        )
        if pair is None:
            return Folding(merged)
        a, b = pair
        parts = (*merged.pop(a, (a,)), *merged.pop(b, (b,)))
        axis = Axis("".join(part.name for part in parts), product(part.extent for part in parts))
        merged[axis] = parts
        addresses = [_replace(address, a, b, axis) for address in addresses]
        domains = [domain - {a, b} | {axis} if a in domain else domain for domain in domains]
        current = dict.fromkeys(axis if x is a else x for x in current if x is not b)


def _walks_as_one(
    a: Axis, b: Axis, addresses: Sequence[Index], domains: Sequence[frozenset[Axis]]
) -> bool:
    if any((a in domain) != (b in domain) for domain in domains):
        return False
    return all(i.coefficient(a) == i.coefficient(b) * b.extent for i in addresses)


def _replace(index: Index, a: Axis, b: Axis, axis: Axis) -> Index:
    kept = tuple(term for term in index.terms if term[0] not in (a, b))
    return Index(kept, index.constant) + at(axis).scaled(index.coefficient(b))
