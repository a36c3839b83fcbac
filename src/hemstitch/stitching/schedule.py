"""When each root runs: its nest, its phase (barriers between) and its stage (loops of a row).

The schemes of AStitch (Table 1) fall out of where a reduction's result is read again:
in the same row it stays in a register or row buffer (regional); in a row of another task it goes
through shared scratch or partial results behind a barrier (global).
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hemstitch.ir.graph import Node
from hemstitch.machine.record import Machine
from hemstitch.stitching.axis_collapsing import Folding
from hemstitch.stitching.dimension_unification import Unification
from hemstitch.stitching.group import (
    Group,
    Root,
    Write,
    is_scatter_root,
    roots,
)
from hemstitch.stitching.loop_shapes import Mapping, RootShape, shapes_of
from hemstitch.stitching.matmul_mapping import products_of
from hemstitch.stitching.online_softmax import LONGEST_ROW
from hemstitch.stitching.partial_results import pays
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.scan_mapping import is_read_in_place
from hemstitch.stitching.scatter_mapping import scatter_mappings
from hemstitch.stitching.thread_mapping import choose


class Scheme(Enum):
    """How a reduction's result reaches its readers (AStitch, Table 1)."""

    REGIONAL = "regional"  # within the row: register or row buffer
    SHARED = "shared"  # whole rows, read after a barrier: scratch
    PARTIAL = "partial"  # each task has a part; combined after a barrier

    @property
    def is_global(self) -> bool:
        return self is not Scheme.REGIONAL


@dataclass(frozen=True, slots=True)
class RootPlace:
    """Where one root runs."""

    nest: int  # index into Schedule.mappings
    phase: int
    stage: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """`mappings`: one a dominant; `places` and `shapes` of every root; `schemes` of reductions.
    `combined`: those whose partial results the next phase combines for all later ones. `follows`:
    the sums that are counted from a maximum so far, and that maximum."""

    unification: Unification
    folding: Folding
    mappings: tuple[Mapping, ...]
    shapes: MappingOf[Root, RootShape]
    places: MappingOf[Root, RootPlace]
    schemes: MappingOf[Node, Scheme]
    root_of: MappingOf[Node, Root]
    combined: frozenset[Node]
    follows: MappingOf[Node, Node]

    @property
    def phases(self) -> int:
        return 1 + max(place.phase for place in self.places.values())

    def combined_in(self, phase: int) -> list[Node]:
        """In the order of their roots."""
        made = [root.reduction for root, place in self.places.items() if place.phase + 1 == phase]
        return [node for node in made if node in self.combined]

    def filled_in(self, phase: int) -> list[Write]:
        """With zeros, for what the next phase adds."""
        roots = [root for root, place in self.places.items() if place.phase == phase + 1]
        atomic = (root for root in roots if self.mappings[self.places[root].nest].atomic)
        return [root.write for root in atomic if root.write is not None]

    def at(self, nest: int, phase: int) -> list[Root]:
        return [r for r, place in self.places.items() if (place.nest, place.phase) == (nest, phase)]


def schedule(group: Group, machine: Machine) -> Schedule:
    """Raises Refused where the group cannot be one kernel."""
    found = roots(group)
    own = [node for node in group.members if node not in group.rematerialised]
    unification = Unification(own, [w.value for w in group.writes], group.reads)
    shapes, folding = shapes_of(group, found, unification)
    mappings: list[Mapping] = []
    nest_of: dict[Root, int] = {}
    products = products_of(group, unification, folding)
    for mapping, followers in (
        *choose(group, shapes, products, machine),
        *scatter_mappings(group, shapes, unification, folding, machine),
    ):
        nest_of |= {shape.root: len(mappings) for shape in followers}
        mappings.append(mapping)
    by_root = {shape.root: shape for shape in shapes}
    root_of = {root.reduction: root for root in found if root.reduction is not None}
    partial = {n for n, r in root_of.items() if _is_partial(by_root[r], mappings[nest_of[r]])}
    below = {root: by_root[root].needs for root in found}
    once = {root: mappings[nest] for root, nest in nest_of.items() if mappings[nest].once}
    follows = {n: m for n, m in group.follows.items() if {root_of[n], root_of[m]} <= once.keys()}
    readers = {
        node: {
            nest_of[root]
            for root in found
            if node in below[root]
            and not mappings[nest_of[root]].deals_out(folding.axes(unification.domain[node].axes))
        }
        for node in partial
    }
    shared = {
        root: {n for n in nodes if is_read_in_place(n, by_root[root], by_root[root_of[n]])}
        for root, nodes in below.items()
    }
    for node, leader in follows.items():
        shared[root_of[node]].add(leader)
    places = _places(found, below, nest_of, partial, frozenset(), root_of, shared)
    combined = _combined(group, machine, places, readers, root_of)
    if combined:
        places = _places(found, below, nest_of, partial, combined, root_of, shared)
    for root, mapping in once.items():
        is_again = root.reduction is None or places[root].stage > 0
        if is_again and mapping.once is not None and mapping.once in by_root[root].axes:
            why = f"rows of {mapping.once.extent}, at most {LONGEST_ROW} stay in registers"
            raise Refused("product", why)
    _delay_replacements(group, by_root, places)
    _delay_atomic(mappings, places)
    schemes = {node: Scheme.PARTIAL if node in partial else Scheme.REGIONAL for node in root_of}
    for root in found:
        for node in below[root] - partial:
            made, read = places[root_of[node]], places[root]
            if (made.nest, made.phase) != (read.nest, read.phase):
                schemes[node] = Scheme.SHARED
    return Schedule(
        *(unification, folding, tuple(mappings), by_root, places, schemes, root_of),
        *(combined, follows),
    )


def _is_partial(shape: RootShape, mapping: Mapping) -> bool:
    """Whether each task has a part of every sum; one by index lies in memory whole."""
    is_cut = bool(set(mapping.rows) & set(mapping.placed(shape.reduced)))
    return is_cut and not is_scatter_root(shape.root)


def _combined(
    group: Group,
    machine: Machine,
    places: MappingOf[Root, RootPlace],
    readers: MappingOf[Node, set[int]],
    root_of: MappingOf[Node, Root],
) -> frozenset[Node]:
    """Partial results for which a phase of their own pays. `readers`: the nests in which every task
    would combine all of a reduction for itself."""
    by_phase: dict[int, list[Node]] = {}
    for node, nests in readers.items():
        if nests and node.type.size != 1:
            by_phase.setdefault(places[root_of[node]].phase, []).append(node)
    return frozenset(
        node
        for nodes in by_phase.values()
        if pays([(group.hint(n.type.size), len(readers[n])) for n in nodes], machine)
        for node in nodes
    )


def _delay_replacements(
    group: Group, shapes: MappingOf[Root, RootShape], places: dict[Root, RootPlace]
) -> None:
    """An argument that the group both reads and replaces is replaced last: behind a barrier where
    other nests read it."""
    read = set(group.reads.values())
    for root, place in places.items():
        if root.write is None or root.write.tensor not in read:
            continue
        readers = [places[r] for r, shape in shapes.items() if root.write.tensor in shape.reads]
        phase = max(reader.phase for reader in [*readers, place])
        if any(reader.nest != place.nest and reader.phase == phase for reader in readers):
            phase += 1
        same = [p for p in places.values() if (p.nest, p.phase) == (place.nest, phase)]
        places[root] = RootPlace(place.nest, phase, max((p.stage for p in same), default=0))


def _delay_atomic(mappings: Sequence[Mapping], places: dict[Root, RootPlace]) -> None:
    """What tasks add to together is filled with zeros in a phase before."""
    for root, place in places.items():
        if mappings[place.nest].atomic:
            places[root] = RootPlace(place.nest, max(1, place.phase), place.stage)


def _places(
    found: Sequence[Root],
    below: MappingOf[Root, frozenset[Node]],
    nest_of: MappingOf[Root, int],
    partial: set[Node],
    combined: frozenset[Node],
    root_of: MappingOf[Node, Root],
    shared: MappingOf[Root, set[Node]],
) -> dict[Root, RootPlace]:
    """As early as the reductions that each root reads allow, with a phase more for `combined`. The
    loops of those that it has `shared` with it can be its own: maxima that it is counted from, and
    scans."""
    places: dict[Root, RootPlace] = {}
    for root in found:
        nest = nest_of[root]
        made = {node: places[root_of[node]] for node in below[root]}
        same = {n for n, place in made.items() if n not in partial and place.nest == nest}
        waits = {n: (n not in same) + (n in combined) for n in made}
        phase = max([made[n].phase + waits[n] for n in made], default=0)
        stages = (made[n].stage + (n not in shared[root]) for n in same if made[n].phase == phase)
        stage = max(stages, default=0)
        places[root] = RootPlace(nest, phase, stage)
    return places
