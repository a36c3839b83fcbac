"""Scheduling: assigns each root a nest, a phase (between barriers) and a stage (loops of one row,
in order).

The schemes of AStitch (Table 1) follow from where a reduction's result is read. In the same row it
stays in a register or row buffer (regional). In a row of another task it goes through shared
scratch memory or partial results, behind a barrier (global).
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hemstitch.ir.graph import Node
from hemstitch.machine.record import Machine
from hemstitch.stitching.axis_collapsing import CollapsedAxes
from hemstitch.stitching.dimension_unification import Unification
from hemstitch.stitching.group import (
    Group,
    Root,
    Write,
    is_scatter_root,
    roots,
)
from hemstitch.stitching.loop_shapes import Mapping, RootShape, shapes_of
from hemstitch.stitching.matmul_mapping import matmuls_of
from hemstitch.stitching.online_softmax import LONGEST_ROW
from hemstitch.stitching.partial_results import is_combining_profitable
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.scan_mapping import is_read_in_place
from hemstitch.stitching.scatter_mapping import scatter_mappings
from hemstitch.stitching.thread_mapping import choose_mappings


class Scheme(Enum):
    """How a reduction's result reaches its readers (AStitch, Table 1)."""

    REGIONAL = "regional"  # within the row: register or row buffer
    SHARED = "shared"  # whole rows, read after a barrier: scratch
    PARTIAL = "partial"  # each task reduces a part; combined after a barrier

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
    """`mappings`: one per dominant. `places`, `shapes`: of every root. `schemes`: of reductions.
    `combined`: reductions whose partial results a phase of their own combines. `running_maximum`:
    for a sum of online softmax, its MAX reduction."""

    unification: Unification
    collapsed: CollapsedAxes
    mappings: tuple[Mapping, ...]
    shapes: MappingOf[Root, RootShape]
    places: MappingOf[Root, RootPlace]
    schemes: MappingOf[Node, Scheme]
    root_of: MappingOf[Node, Root]
    combined: frozenset[Node]
    running_maximum: MappingOf[Node, Node]

    @property
    def phases(self) -> int:
        return 1 + max(place.phase for place in self.places.values())

    def combined_in(self, phase: int) -> list[Node]:
        """Reductions that this phase combines, in the order of their roots."""
        reductions = [
            root.reduction for root, place in self.places.items() if place.phase + 1 == phase
        ]
        return [node for node in reductions if node in self.combined]

    def filled_in(self, phase: int) -> list[Write]:
        """Writes that this phase clears, since the next phase adds to them atomically."""
        roots = [root for root, place in self.places.items() if place.phase == phase + 1]
        atomic = (root for root in roots if self.mappings[self.places[root].nest].atomic)
        return [root.write for root in atomic if root.write is not None]

    def at(self, nest: int, phase: int) -> list[Root]:
        return [r for r, place in self.places.items() if (place.nest, place.phase) == (nest, phase)]


def schedule(group: Group, machine: Machine) -> Schedule:
    """Raises Refused where the group cannot be one kernel."""
    group_roots = roots(group)
    own = [node for node in group.members if node not in group.rematerialised]
    unification = Unification(own, [w.value for w in group.writes], group.reads)
    shapes, collapsed = shapes_of(group, group_roots, unification)
    mappings: list[Mapping] = []
    nest_of: dict[Root, int] = {}
    matmuls = matmuls_of(group, unification, collapsed)
    for mapping, followers in (
        *choose_mappings(group, shapes, matmuls, machine),
        *scatter_mappings(group, shapes, unification, collapsed, machine),
    ):
        nest_of |= {shape.root: len(mappings) for shape in followers}
        mappings.append(mapping)
    by_root = {shape.root: shape for shape in shapes}
    root_of = {root.reduction: root for root in group_roots if root.reduction is not None}
    partial = {n for n, r in root_of.items() if _is_partial(by_root[r], mappings[nest_of[r]])}
    needs = {root: by_root[root].needs for root in group_roots}
    single_pass = {r: mappings[n] for r, n in nest_of.items() if mappings[n].single_pass}
    running_maximum = {
        n: m
        for n, m in group.running_maximum.items()
        if {root_of[n], root_of[m]} <= single_pass.keys()
    }
    readers = {
        node: {
            nest_of[root]
            for root in group_roots
            if node in needs[root]
            and not mappings[nest_of[root]].distributes(
                collapsed.axes(unification.domain[node].axes)
            )
        }
        for node in partial
    }
    shared = {
        root: {n for n in nodes if is_read_in_place(n, by_root[root], by_root[root_of[n]])}
        for root, nodes in needs.items()
    }
    for node, leader in running_maximum.items():
        shared[root_of[node]].add(leader)
    places = _places(group_roots, needs, nest_of, partial, frozenset(), root_of, shared)
    combined = _combined(group, machine, places, readers, root_of)
    if combined:
        places = _places(group_roots, needs, nest_of, partial, combined, root_of, shared)
    _check_single_pass(single_pass, by_root, places)
    _delay_replacements(group, by_root, places)
    _delay_atomic(mappings, places)
    schemes = {node: Scheme.PARTIAL if node in partial else Scheme.REGIONAL for node in root_of}
    for root in group_roots:
        for node in needs[root] - partial:
            written, place = places[root_of[node]], places[root]
            if (written.nest, written.phase) != (place.nest, place.phase):
                schemes[node] = Scheme.SHARED
    return Schedule(
        *(unification, collapsed, tuple(mappings), by_root, places, schemes, root_of),
        *(combined, running_maximum),
    )


def _check_single_pass(
    mappings: MappingOf[Root, Mapping],
    shapes: MappingOf[Root, RootShape],
    places: MappingOf[Root, RootPlace],
) -> None:
    """Raises Refused for a root that needs a second pass over rows too long for registers."""
    for root, mapping in mappings.items():
        axis = mapping.single_pass
        is_second_pass = root.reduction is None or places[root].stage > 0
        if is_second_pass and axis is not None and axis in shapes[root].axes:
            why = f"rows of {axis.extent}, at most {LONGEST_ROW} stay in registers"
            raise Refused("matmul", why)


def _is_partial(shape: RootShape, mapping: Mapping) -> bool:
    """Whether each task reduces a part of every sum. A scatter-add is in memory as a whole."""
    is_split = bool(set(mapping.rows) & set(mapping.after_split(shape.reduced)))
    return is_split and not is_scatter_root(shape.root)


def _combined(
    group: Group,
    machine: Machine,
    places: MappingOf[Root, RootPlace],
    readers: MappingOf[Node, set[int]],
    root_of: MappingOf[Node, Root],
) -> frozenset[Node]:
    """Partial results for which a combining phase is profitable. `readers`: the nests in which
    every task would combine all of a reduction for itself."""
    by_phase: dict[int, list[Node]] = {}
    for node, nests in readers.items():
        if nests and node.type.size != 1:
            by_phase.setdefault(places[root_of[node]].phase, []).append(node)
    return frozenset(
        node
        for nodes in by_phase.values()
        if is_combining_profitable(
            [(group.hint(n.type.size), len(readers[n])) for n in nodes], machine
        )
        for node in nodes
    )


def _delay_replacements(
    group: Group, shapes: MappingOf[Root, RootShape], places: dict[Root, RootPlace]
) -> None:
    """An argument that the group reads and replaces is replaced last: behind a barrier where other
    nests read it."""
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
    """Atomic additions go behind a phase that clears their result."""
    for root, place in places.items():
        if mappings[place.nest].atomic:
            places[root] = RootPlace(place.nest, max(1, place.phase), place.stage)


def _places(
    group_roots: Sequence[Root],
    needs: MappingOf[Root, frozenset[Node]],
    nest_of: MappingOf[Root, int],
    partial: set[Node],
    combined: frozenset[Node],
    root_of: MappingOf[Node, Root],
    shared: MappingOf[Root, set[Node]],
) -> dict[Root, RootPlace]:
    """As early as the reductions allow that each root reads; one phase later for `combined` ones. A
    root shares the loops of reductions in `shared`: running maxima and scans."""
    places: dict[Root, RootPlace] = {}
    for root in group_roots:
        nest = nest_of[root]
        place_of = {node: places[root_of[node]] for node in needs[root]}
        same = {n for n, place in place_of.items() if n not in partial and place.nest == nest}
        waits = {n: (n not in same) + (n in combined) for n in place_of}
        phase = max([place_of[n].phase + waits[n] for n in place_of], default=0)
        stages = (
            place_of[n].stage + (n not in shared[root]) for n in same if place_of[n].phase == phase
        )
        stage = max(stages, default=0)
        places[root] = RootPlace(nest, phase, stage)
    return places
