"""Dimension unification: which tensor axes of a group's nodes are one and the same loop.

Elementwise ops join the axes of operands and result; a broadcast leaves out what it adds; a
reduction drops axes; a product has one of its own, along which it adds up; a permutation reorders;
a reshape splits and merges. What is left are the group's loop axes, and for every node the index
at which a row of the kernel computes it.
Axes that cannot be told apart (y + y.T) are a refusal, not a guess.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, divides, product, quotient
from hemstitch.ir.graph import Address, Node, Op, Range, Windows
from hemstitch.ir.ops import is_elementwise, is_reduction, is_scan, is_scatter, is_view
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.view_indices import Indices, is_even

Slot = int
Slots = tuple[Slot | None, ...]  # one a tensor axis; None: size 1, or bent by a slice


@dataclass(frozen=True, slots=True)
class Domain:
    """The iteration domain of a node: the index along each of its axes, and the loops in that."""

    indices: Indices
    axes: tuple[Axis, ...]

    def within(self, index: Index) -> tuple[Axis, ...]:
        """Its loops that `index` goes along."""
        inside = {variable for variable, _ in index.terms}
        return tuple(axis for axis in self.axes if axis in inside)


@dataclass(slots=True)
class _Forest:
    """Union-find over slots; a class may be split into parts, outermost first."""

    size: list[Dim] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    parts: dict[int, list[int]] = field(default_factory=dict)

    def new(self, size: Dim) -> Slot:
        self.size.append(size)
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, slot: Slot) -> Slot:
        while self.parent[slot] != slot:
            self.parent[slot] = self.parent[self.parent[slot]]
            slot = self.parent[slot]
        return slot

    def atoms(self, slot: Slot) -> list[Slot]:
        """The unsplit classes that make up `slot`, outermost first."""
        root = self.find(slot)
        if root not in self.parts:
            return [root]
        return [atom for part in self.parts[root] for atom in self.atoms(part)]

    def union(self, a: Slot, b: Slot) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if a in self.parts and b in self.parts:
            self.align(list(self.parts[a]), list(self.parts[b]))
        elif b in self.parts:
            a, b = b, a
        if self.size[a] != self.size[b]:
            raise Refused("axes", f"sizes {self.size[a]} and {self.size[b]} may differ")
        self.parent[b] = a

    def split(self, slot: Slot, parts: list[Slot]) -> None:
        root = self.find(slot)
        if root in self.parts:
            self.align(list(self.parts[root]), parts)
        elif root in (atom for part in parts for atom in self.atoms(part)):
            raise Refused("axes", "an axis would contain itself")
        else:
            self.parts[root] = parts

    def align(self, a: list[Slot], b: list[Slot]) -> None:
        """Two ways to split the same range become one, splitting further where they cross."""
        a, b = list(a), list(b)
        while a and b:
            one, other = a.pop(), b.pop()
            size, with_ = self.size[one], self.size[other]
            if size == with_:
                self.union(one, other)
            elif divides(with_, size):
                a.append(self._cut(one, other, quotient(size, with_)))
            elif divides(size, with_):
                b.append(self._cut(other, one, quotient(with_, size)))
            else:
                raise Refused("reshape", f"sizes {size} and {with_} cut each other unevenly")
        if a or b:
            raise Refused("reshape", "sizes that cannot be matched")

    def _cut(self, slot: Slot, inner: Slot, outer_size: Dim) -> Slot:
        outer = self.new(outer_size)
        self.split(slot, [outer, inner])
        return outer


class Unification:
    """The loops of one group: `domain[node]` for each member, `operand[node]` for what a reduction
    or scan reads (of a product the left one), `contracted[node]` for the index along which a
    product adds up."""

    def __init__(
        self, members: Sequence[Node], stores: Sequence[Node], leaves: Container[Node]
    ) -> None:
        """`leaves`: nodes that are in memory, whatever they are made of."""
        self._forest = _Forest()
        self._members = frozenset(members)
        self._slots: dict[Node, Slots] = {}
        self._walked: dict[Node, Slots] = {}
        self._contracted: dict[Node, Slot | None] = {}
        self._in_memory = leaves
        self._leaves: list[tuple[Node, Slots]] = []
        self._reshaped: list[tuple[Node, Slots]] = []  # what is in memory
        for node in members:
            self._slots[node] = self._fresh(node.shape)
        for node in members:
            self._relate_operands(node)
        self._stores: dict[Node, Slots] = {}
        for value in stores:
            self._stores[value] = self._fresh(value.shape)
            self._relate(value, self._stores[value])
        for view, slots in self._reshaped:
            self._relate(view.inputs[0], self._read(view, slots))
        self._share_leaves()
        self._axes: dict[Slot, Axis] = {}
        self._domains: dict[Slots, Domain] = {}
        self._check()
        self.domain = {node: self._domain(slots) for node, slots in self._slots.items()}
        self.stored = {node: self._domain(slots) for node, slots in self._stores.items()}
        self.operand = {node: self._domain(slots) for node, slots in self._walked.items()}
        self.operand |= {node: self.domain[node] for node in members if is_scan(node.op)}
        self.contracted = {node: self._domain((k,)) for node, k in self._contracted.items()}
        for node, k in self._contracted.items():
            self.operand[node] = self._domain((*self._slots[node][:-1], k))

    # --- relations

    def _fresh(self, shape: tuple[Dim, ...]) -> Slots:
        return tuple(None if size == 1 else self._forest.new(size) for size in shape)

    def _relate_operands(self, node: Node) -> None:
        slots = self._slots[node]
        if is_reduction(node.op):
            axes = node.attr
            assert isinstance(axes, tuple)
            kept = (axis for axis in range(node.inputs[0].type.rank) if axis not in axes)
            self._walk(node, dict(zip(kept, slots)))
        elif is_scatter(node.op):
            addresses = node.attr
            assert isinstance(addresses, tuple)
            places = (a.axis for a in addresses if isinstance(a, Address))
            self._walk(node, {axis: s for axis, s in zip(places, slots) if axis is not None})
        elif node.op is Op.GATHER:
            addresses = node.attr
            assert isinstance(addresses, tuple)
            self._relate(
                node.inputs[0],
                tuple(
                    slots[a.axis] if isinstance(a, Address) and a.axis is not None else None
                    for a in addresses
                ),
            )
            for index in node.inputs[1:]:
                self._relate(index, slots)
        elif node.op is Op.DOT:
            a, b = node.inputs
            *batch, row, column = slots
            (k,) = self._fresh(a.shape[-1:])
            self._contracted[node] = k
            self._relate(a, (*batch, row, k))
            self._relate(b, (*batch, k, column))
        else:
            for operand in node.inputs:
                self._relate(operand, slots)

    def _walk(self, node: Node, kept: Mapping[int, Slot | None]) -> None:
        """What a reduction's operands have in common: `kept` axes are the result's."""
        fresh = enumerate(self._fresh(node.inputs[0].shape))
        self._walked[node] = tuple(kept.get(axis, slot) for axis, slot in fresh)
        for operand in node.inputs:
            self._relate(operand, self._walked[node])

    def _relate(self, node: Node, slots: Slots) -> None:
        """`node` is read at `slots`: carry that down its views to the value below."""
        work, seen = [(node, slots)], set[tuple[Node, Slots]]()
        while work:
            node, slots = work.pop()
            if (node, slots) in seen:
                continue
            seen.add((node, slots))
            if node in self._members:
                for own, wanted in zip(self._slots[node], slots):
                    if own is not None and wanted is not None:
                        self._forest.union(own, wanted)
            elif (is_view(node.op) or is_elementwise(node.op)) and node not in self._in_memory:
                work.extend(self._through(node, slots))
            elif node.type.rank:
                self._leaves.append((node, slots))

    def _through(self, view: Node, slots: Slots) -> list[tuple[Node, Slots]]:
        match view.op:
            case Op.PERMUTE:
                assert isinstance(view.attr, tuple)
                found = dict(zip(view.attr, slots))
                return [(view.inputs[0], tuple(found[axis] for axis in range(len(slots))))]
            case Op.RESHAPE if view.inputs[0] in self._in_memory:
                self._reshaped.append((view, slots))
                return []
            case Op.RESHAPE:
                return [(view.inputs[0], self._reshape(view, slots))]
            case Op.SLICE:
                assert isinstance(view.attr, tuple)
                whole = [
                    size == wide and part == Range(0)
                    for size, wide, part in zip(view.shape, view.inputs[0].shape, view.attr)
                ]
                return [(view.inputs[0], tuple(s if w else None for s, w in zip(slots, whole)))]
            case Op.UNFOLD:  # no loop goes along the axis that is cut into windows
                windows = view.attr
                assert isinstance(windows, Windows)
                apart = (None if k == windows.axis else s for k, s in enumerate(slots[:-1]))
                return [(view.inputs[0], tuple(apart))]
            case _:  # BROADCAST, PAD, CONCAT: an axis of another size is another axis; what is
                # elementwise and no member is made again wherever it is read
                return [
                    (
                        part,
                        tuple(
                            slot if size == wide and size != 1 else None
                            for slot, size, wide in zip(slots, part.shape, view.shape)
                        ),
                    )
                    for part in view.inputs
                    if part.type.rank
                ]

    def _read(self, view: Node, slots: Slots) -> Slots:
        """Slots of what a reshape shows of memory. It is read where it lies if loops as others need
        them do not go along its axes."""
        (source,) = view.inputs
        is_bent = any(slot is None and size != 1 for slot, size in zip(slots, view.shape))
        loops = tuple(self._forest.size[atom] for atom in self._atoms(slots))
        if not is_even(view.shape if is_bent else loops, source.shape):
            return (None,) * source.type.rank
        return self._reshape(view, slots)

    def _reshape(self, view: Node, slots: Slots) -> Slots:
        """Slots of the operand, its runs of axes matched with the view's runs of equal size."""
        (source,) = view.inputs
        below = self._fresh(source.shape)
        if product(view.shape) == 0:
            return below
        ours = [s for s, size in zip(slots, view.shape) if size != 1]
        theirs = [s for s in below if s is not None]
        if None in ours:  # below a slice: only equal axes at either end carry over
            self._join_equal(ours, theirs)
            self._join_equal(ours[::-1], theirs[::-1])
            return below
        self._forest.align([s for s in ours if s is not None], theirs)
        return below

    def _join_equal(self, ours: list[Slot | None], theirs: list[Slot]) -> None:
        sizes = self._forest.size
        for mine, other in zip(ours, theirs):
            if mine is None or sizes[mine] != sizes[other]:
                return
            self._forest.union(other, mine)

    def _share_leaves(self) -> None:
        """Two readers of one tensor read it in one loop, where nothing speaks against it."""
        domains = [set(self._atoms(slots)) for slots in self._different_slots()]
        seen: dict[Node, Slots] = {}
        for leaf, slots in self._leaves:
            if leaf not in seen:
                seen[leaf] = slots
                continue
            for mine, theirs in zip(slots, seen[leaf]):
                if mine is not None and theirs is not None:
                    self._join(mine, theirs, domains)

    def _join(self, mine: Slot, theirs: Slot, domains: list[set[Slot]]) -> None:
        ours, others = self._forest.atoms(mine), self._forest.atoms(theirs)
        sizes = self._forest.size
        if [sizes[a] for a in ours] != [sizes[b] for b in others]:
            return
        pairs = [(a, b) for a, b in zip(ours, others) if a != b]
        if any(a in domain and b in domain for a, b in pairs for domain in domains):
            return
        for a, b in pairs:
            self._forest.union(a, b)
            root = self._forest.find(a)
            for domain in domains:
                if a in domain or b in domain:
                    domain -= {a, b}
                    domain.add(root)

    # --- results

    def _different_slots(self) -> Iterable[Slots]:
        """Of all nodes, as they are joined: most have those of others."""
        products = [(*self._slots[node], k) for node, k in self._contracted.items()]
        walked = self._walked.values()
        found = [*self._slots.values(), *self._stores.values(), *walked, *products]
        return dict.fromkeys(map(self._joined, found))

    def _atoms(self, slots: Slots) -> list[Slot]:
        return [atom for slot in slots if slot is not None for atom in self._forest.atoms(slot)]

    def _check(self) -> None:
        for slots in self._different_slots():
            atoms = self._atoms(slots)
            if len(set(atoms)) != len(atoms):
                why = "one value is read along two axes at once (y + y.T)"
                raise Refused("axes", why, lasts=True)

    def _joined(self, slots: Slots) -> Slots:
        """The classes they are in."""
        return tuple(None if slot is None else self._forest.find(slot) for slot in slots)

    def _domain(self, slots: Slots) -> Domain:
        joined = self._joined(slots)
        if joined not in self._domains:
            self._domains[joined] = self._domain_of(joined)
        return self._domains[joined]

    def _domain_of(self, slots: Slots) -> Domain:
        indices: list[Index] = []
        for slot in slots:
            index = Index()
            for atom in self._forest.atoms(slot) if slot is not None else ():
                index = index.scaled(self._forest.size[atom]) + at(self._axis(atom))
            indices.append(index)
        return Domain(tuple(indices), tuple(self._axis(atom) for atom in self._atoms(slots)))

    def _axis(self, atom: Slot) -> Axis:
        if atom not in self._axes:
            self._axes[atom] = Axis(f"i{len(self._axes)}", self._forest.size[atom])
        return self._axes[atom]
