"""Dimension unification: finds the loop axes of a group by unifying the tensor axes of its nodes.

Elementwise operations unify the axes of operands and result. A broadcast leaves out the axes that
it adds, a reduction drops axes, a matmul has a contracted axis, a permutation reorders axes, a
reshape splits and merges them. The result: the group's loop axes, and for every node the index at
which the loops compute it. A node that would need one value along two axes at once (y + y.T) is
refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, divides, product, quotient
from hemstitch.ir.graph import Address, Node, Op, Range, Windows
from hemstitch.ir.ops import is_elementwise, is_reduction, is_scan, is_scatter, is_view
from hemstitch.kernel_ir.index import Axis, Index, at
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.view_indices import Indices, splits_whole_axes

Slot = int
Slots = tuple[Slot | None, ...]  # one per tensor axis; None: size 1, or below a slice


@dataclass(frozen=True, slots=True)
class Domain:
    """The iteration domain of a node: the index along each of its axes, and the loops in those
    indices."""

    indices: Indices
    axes: tuple[Axis, ...]

    def within(self, index: Index) -> tuple[Axis, ...]:
        """The loops that `index` depends on."""
        inside = {variable for variable, _ in index.terms}
        return tuple(axis for axis in self.axes if axis in inside)


@dataclass(slots=True)
class _Forest:
    """Union-find over slots. A class may be split into parts, outermost first."""

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
        """Unifies two splits of one range, splitting further where their boundaries differ. Raises
        Refused where sizes do not divide."""
        a, b = list(a), list(b)
        while a and b:
            inner, matching = a.pop(), b.pop()
            size, matching_size = self.size[inner], self.size[matching]
            if size == matching_size:
                self.union(inner, matching)
            elif divides(matching_size, size):
                a.append(self._cut(inner, matching, quotient(size, matching_size)))
            elif divides(size, matching_size):
                b.append(self._cut(matching, inner, quotient(matching_size, size)))
            else:
                raise Refused(
                    "reshape", f"sizes {size} and {matching_size} cut each other unevenly"
                )
        if a or b:
            raise Refused("reshape", "sizes that cannot be matched")

    def _cut(self, slot: Slot, inner: Slot, outer_size: Dim) -> Slot:
        outer = self.new(outer_size)
        self.split(slot, [outer, inner])
        return outer


class Unification:
    """The loops of one group. `domain[node]`: of each member. `operand[node]`: of the operand of a
    reduction or scan (of a matmul the left one). `contracted[node]`: of the contracted axis of a
    matmul. `stored[node]`: of a write."""

    def __init__(
        self, members: Sequence[Node], stores: Sequence[Node], leaves: Container[Node]
    ) -> None:
        """`leaves`: nodes that are in memory."""
        self._forest = _Forest()
        self._members = frozenset(members)
        self._slots: dict[Node, Slots] = {}
        self._reduced_operands: dict[Node, Slots] = {}
        self._contracted: dict[Node, Slot | None] = {}
        self._in_memory = leaves
        self._leaves: list[tuple[Node, Slots]] = []
        self._reshaped: list[tuple[Node, Slots]] = []  # reshapes of leaves
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
        self.operand = {node: self._domain(slots) for node, slots in self._reduced_operands.items()}
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
            self._relate_reduced(node, dict(zip(kept, slots)))
        elif is_scatter(node.op):
            addresses = node.attr
            assert isinstance(addresses, tuple)
            places = (a.axis for a in addresses if isinstance(a, Address))
            self._relate_reduced(
                node, {axis: s for axis, s in zip(places, slots) if axis is not None}
            )
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

    def _relate_reduced(self, node: Node, kept: Mapping[int, Slot | None]) -> None:
        """Relates the operands of a reduction; `kept`: operand axes that are axes of the result."""
        fresh = enumerate(self._fresh(node.inputs[0].shape))
        self._reduced_operands[node] = tuple(kept.get(axis, slot) for axis, slot in fresh)
        for operand in node.inputs:
            self._relate(operand, self._reduced_operands[node])

    def _relate(self, node: Node, slots: Slots) -> None:
        """Records that `node` is read at `slots`, and propagates that through views to the values
        below."""
        work, visited = [(node, slots)], set[tuple[Node, Slots]]()
        while work:
            node, slots = work.pop()
            if (node, slots) in visited:
                continue
            visited.add((node, slots))
            if node in self._members:
                for own, slot in zip(self._slots[node], slots):
                    if own is not None and slot is not None:
                        self._forest.union(own, slot)
            elif (is_view(node.op) or is_elementwise(node.op)) and node not in self._in_memory:
                work.extend(self._through(node, slots))
            elif node.type.rank:
                self._leaves.append((node, slots))

    def _through(self, view: Node, slots: Slots) -> list[tuple[Node, Slots]]:
        match view.op:
            case Op.PERMUTE:
                assert isinstance(view.attr, tuple)
                slot_of = dict(zip(view.attr, slots))
                return [(view.inputs[0], tuple(slot_of[axis] for axis in range(len(slots))))]
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
            case Op.UNFOLD:  # no loop corresponds to the axis that windows overlap on
                windows = view.attr
                assert isinstance(windows, Windows)
                other_slots = (None if k == windows.axis else s for k, s in enumerate(slots[:-1]))
                return [(view.inputs[0], tuple(other_slots))]
            case _:  # BROADCAST, PAD, CONCAT: an axis of another size is another axis. Elementwise
                # nodes that are no members are rematerialised by their readers.
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
        """The slots of the operand of a reshape of a leaf. It has no loops of its own where other
        readers' loops do not follow its axes."""
        (source,) = view.inputs
        is_below_slice = any(slot is None and size != 1 for slot, size in zip(slots, view.shape))
        loops = tuple(self._forest.size[atom] for atom in self._atoms(slots))
        if not splits_whole_axes(view.shape if is_below_slice else loops, source.shape):
            return (None,) * source.type.rank
        return self._reshape(view, slots)

    def _reshape(self, view: Node, slots: Slots) -> Slots:
        """The slots of a reshape's operand: runs of its axes are matched with runs of the view's
        axes of equal size."""
        (source,) = view.inputs
        below = self._fresh(source.shape)
        if product(view.shape) == 0:
            return below
        ours = [s for s, size in zip(slots, view.shape) if size != 1]
        theirs = [s for s in below if s is not None]
        if None in ours:  # below a slice: only equal axes at either end correspond
            self._join_equal(ours, theirs)
            self._join_equal(ours[::-1], theirs[::-1])
            return below
        self._forest.align([s for s in ours if s is not None], theirs)
        return below

    def _join_equal(self, ours: list[Slot | None], theirs: list[Slot]) -> None:
        sizes = self._forest.size
        for mine, slot in zip(ours, theirs):
            if mine is None or sizes[mine] != sizes[slot]:
                return
            self._forest.union(slot, mine)

    def _share_leaves(self) -> None:
        """Unifies the axes of two reads of one tensor, where that makes no domain use an axis
        twice."""
        domains = [set(self._atoms(slots)) for slots in self._different_slots()]
        first_read: dict[Node, Slots] = {}
        for leaf, slots in self._leaves:
            if leaf not in first_read:
                first_read[leaf] = slots
                continue
            for mine, theirs in zip(slots, first_read[leaf]):
                if mine is not None and theirs is not None:
                    self._join(mine, theirs, domains)

    def _join(self, mine: Slot, theirs: Slot, domains: list[set[Slot]]) -> None:
        our_atoms, their_atoms = self._forest.atoms(mine), self._forest.atoms(theirs)
        sizes = self._forest.size
        if [sizes[a] for a in our_atoms] != [sizes[b] for b in their_atoms]:
            return
        pairs = [(a, b) for a, b in zip(our_atoms, their_atoms) if a != b]
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
        """The distinct slots of all nodes, as classes."""
        matmuls = [(*self._slots[node], k) for node, k in self._contracted.items()]
        reduced = self._reduced_operands.values()
        slots = [*self._slots.values(), *self._stores.values(), *reduced, *matmuls]
        return dict.fromkeys(map(self._joined, slots))

    def _atoms(self, slots: Slots) -> list[Slot]:
        return [atom for slot in slots if slot is not None for atom in self._forest.atoms(slot)]

    def _check(self) -> None:
        for slots in self._different_slots():
            atoms = self._atoms(slots)
            if len(set(atoms)) != len(atoms):
                why = "one value is read along two axes at once (y + y.T)"
                raise Refused("axes", why, lasts=True)

    def _joined(self, slots: Slots) -> Slots:
        """The classes of slots."""
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
