"""What only backward needs, a ReLU's mask, and forward could save: a kernel of forward that has at
hand what it is made of writes one value more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import reduce

from torch.fx import Node

from hemstitch.capture.traced_nodes import (
    base_of,
    bytes_of,
    is_given,
    is_recomputed,
    is_view,
)
from hemstitch.joint.joint_graph import JointGraph


@dataclass(frozen=True, slots=True)
class _Recipe:
    """`computed`: nodes computed for it that forward does not need. `of`: what of that is there."""

    computed: frozenset[Node]
    of: frozenset[Node]


def costs(
    joint: JointGraph, nodes: Iterable[Node], seen: Set[Node], kernel_of: Mapping[Node, int]
) -> dict[Node, float]:
    """Of those of `nodes`, sorted, that are not `seen` (of forward), but could be: what a kernel of
    forward loads and computes for them, in bytes moved; that it writes them is extra."""
    recipes: dict[Node, _Recipe] = {}
    cost_of: dict[Node, float] = {}
    for node in nodes:
        recipe = _recipe(joint, node, seen, recipes)
        if recipe is None:
            continue
        recipes[node] = recipe
        loads = _loads(recipe.of, seen, kernel_of)
        if loads is not None and recipe.computed and not is_view(node):
            cost_of[node] = loads + sum(joint.operation(x).work for x in recipe.computed)
    return cost_of


def _recipe(
    joint: JointGraph, node: Node, seen: Set[Node], recipes: Mapping[Node, _Recipe]
) -> _Recipe | None:
    """None: it takes a value that the program wants made again, and not kept."""
    if is_recomputed(node):
        return None
    if is_given(node) or node in seen or joint.is_call(node):
        return _Recipe(frozenset(), frozenset((base_of(node),)))
    sources = [recipes.get(source) for source in joint.operation(node).sources]
    known = [source for source in sources if source is not None]
    if len(known) < len(sources):
        return None
    own = frozenset((node,)) if not is_view(node) else frozenset[Node]()
    return _Recipe(
        own.union(*(recipe.computed for recipe in known)),
        frozenset().union(*(recipe.of for recipe in known)),
    )


def _loads(parts: Collection[Node], seen: Set[Node], kernel_of: Mapping[Node, int]) -> float | None:
    """Bytes of arguments that the best kernel of forward does not read yet; it has all else. None:
    there is no such kernel."""
    at = {part: {*_kernels_at(part, seen, kernel_of)} for part in parts}
    local = [at[part] for part in parts if not is_given(part)]
    kernels = reduce(set.intersection, local) if local else set[int]().union(*at.values())
    missing = (
        sum(bytes_of(part) for part in parts if is_given(part) and kernel not in at[part])
        for kernel in kernels
    )
    return min(missing, default=None)


def _kernels_at(node: Node, seen: Set[Node], kernel_of: Mapping[Node, int]) -> Iterator[int]:
    """Kernels of forward that compute or read it."""
    if node in kernel_of and node in seen:
        yield kernel_of[node]
    for user in node.users:
        if user in seen and user in kernel_of:
            yield kernel_of[user]
            if is_view(user):
                yield from _kernels_at(user, seen, kernel_of)
