"""The loops of every root of a group and its memory accesses, over collapsed axes; and how such
loops are mapped to tasks and lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from math import prod

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, is_scan
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, expand, linear
from hemstitch.stitching.axis_collapsing import CollapsedAxes, collapse
from hemstitch.stitching.dimension_unification import Domain, Unification
from hemstitch.stitching.group import (
    INLINE,
    Group,
    Root,
    Tensor,
    dot_indices,
    gathered_indices,
    is_scatter_root,
    leaf_below,
    operands,
    reductions_below,
    reductions_of,
    unknown_indices,
)
from hemstitch.stitching.recomputation import Evaluations
from hemstitch.stitching.view_indices import Indices

ARG_REDUCTIONS = (Op.ARGMAX, Op.ARGMIN)


@dataclass(frozen=True, slots=True)
class Mapping:
    """How loops map to tasks and lanes. `rows`: axes distributed over tasks, outermost first.
    `order`: all other axes in loop order, the lane axis last.

    `split`: the lane axis as outer block * inner size + inner, where it is split. `single_pass`:
    the lane axis, where rows are too long to be read a second time. `atomic`: several rows add to
    the same elements.
    """

    rows: tuple[Axis, ...]
    order: tuple[Axis, ...]
    split: dict[Variable, Index] = field(default_factory=dict)
    single_pass: Axis | None = None
    atomic: bool = False

    def after_split(self, axes: Iterable[Axis]) -> list[Axis]:
        """`axes`, with a split axis replaced by its block and inner axes."""
        split_axes: list[Axis] = []
        for axis in axes:
            if axis in self.split:
                split_axes += [v for v, _ in self.split[axis].terms if isinstance(v, Axis)]
            else:
                split_axes.append(axis)
        return split_axes

    def distributes(self, axes: Iterable[Axis]) -> bool:
        """Whether different rows access different elements of a tensor with these axes."""
        return bool(self.rows) and set(self.rows) <= set(self.after_split(axes))

    def inner(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Those of `axes` that are looped over inside a row, in loop order."""
        wanted = set(axes)
        return tuple(axis for axis in self.order if axis in wanted)


@dataclass(frozen=True, slots=True)
class RootShape:
    """The loops and memory accesses of one root, as far as mapping needs them. `shifted_scans`:
    scans that it reads at other indices than its own."""

    root: Root
    axes: tuple[Axis, ...]
    reduced: frozenset[Axis]  # of a scan: the scanned axis
    addresses: tuple[Index, ...]
    computed: MappingOf[Computed, frozenset[Axis]]  # axes that a computed index depends on
    flops: int
    volume: int  # iterations, at the example sizes
    needs: frozenset[Node]  # reductions of the group that it reads
    matmuls: tuple[Node, ...]  # that it computes
    reads: frozenset[Tensor]
    shifted_scans: frozenset[Node]

    @property
    def stored(self) -> Index | None:
        """The address that is written."""
        return None if self.root.write is None else self.addresses[0]


def shapes_of(
    group: Group, roots: Sequence[Root], unification: Unification
) -> tuple[list[RootShape], CollapsedAxes]:
    """The shapes of the roots over collapsed axes, and those axes."""
    domains = [domain_of(root, unification) for root in roots]
    walk = _MemoryWalk(group, unification)
    accesses = [walk.accesses(root) for root in roots]
    loops = [frozenset(domain.axes) for domain in domains]
    reduced = [_reduced(root, axes, unification) for root, axes in zip(roots, loops)]
    matmuls = [node for access in accesses for node in access.matmuls]
    steps = [unification.contracted[node].axes for node in matmuls]
    steps += [unification.domain[node].axes for node in group.k_along_lanes]
    # If both operands broadcast along a row, no address distinguishes rows from columns.
    results = [unification.domain[node] for node in matmuls]
    columns = [frozenset(result.within(result.indices[-1])) for result in results]
    collapsed = collapse(
        (axis for axes in (*(d.axes for d in domains), *steps) for axis in axes),
        [address for access in accesses for address in access.addresses],
        [*loops, *reduced, *map(frozenset, steps), *columns],
    )
    shapes = [
        RootShape(
            root,
            collapsed.axes(domain.axes),
            frozenset(collapsed.axes(axis for axis in domain.axes if axis in root_reduced)),
            tuple(collapsed.index(address) for address in access.addresses),
            {v: frozenset(collapsed.axes(axes)) for v, axes in walk.computed.items()},
            access.flops,
            prod(group.hint(axis.extent) for axis in domain.axes),
            frozenset(reductions_below(root.values, walk.members, walk.reductions)),
            access.matmuls,
            access.reads,
            access.shifted_scans,
        )
        for root, domain, root_reduced, access in zip(roots, domains, reduced, accesses)
    ]
    return shapes, collapsed


def _reduced(root: Root, loops: frozenset[Axis], unification: Unification) -> frozenset[Axis]:
    """The loops of a root along which rows cannot be distributed without exchanging results."""
    node = root.reduction
    if node is None:
        return frozenset()
    domain = unification.domain[node]
    if is_scan(node.op):
        return loops.intersection(v for v, _ in scan_position(node, domain).terms)
    return loops - frozenset(domain.axes)


def scan_position(node: Node, domain: Domain) -> Index:
    """The index along the axis of a scan."""
    assert isinstance(node.attr, int)
    return domain.indices[node.attr]


def domain_of(root: Root, unification: Unification) -> Domain:
    """The domain of a root's value: of a reduction's operand, or of a write."""
    if root.reduction is not None:
        return unification.operand[root.reduction]
    return unification.stored[root.value]


def right_operand(matmul: Node, unification: Unification) -> tuple[Node, Indices]:
    """The right operand of a matmul, and its indices at one step of one element."""
    (step,) = unification.contracted[matmul].indices
    return matmul.inputs[1], dot_indices(unification.domain[matmul].indices, step)[1]


def arg_position(node: Node, domain: Domain) -> Index:
    """ARGMAX and ARGMIN: the flat index within the reduced axes."""
    assert isinstance(node.attr, tuple)
    axes = [axis for axis in node.attr if isinstance(axis, int)]
    sizes = tuple(node.inputs[0].shape[axis] for axis in axes)
    return linear([domain.indices[axis] for axis in axes], contiguous_strides(sizes))


@dataclass(frozen=True, slots=True)
class _Accesses:
    """The accesses of one root. `addresses`: of memory accesses, and of computed indices."""

    addresses: tuple[Index, ...]
    reads: frozenset[Tensor]
    matmuls: tuple[Node, ...]
    flops: int
    shifted_scans: frozenset[Node]


def _own(root: Root, domain: Domain) -> dict[tuple[object, Index], None]:
    """The addresses that a root itself writes, and the positions that it compares."""
    addresses: dict[tuple[object, Index], None] = {}
    if root.write is not None:
        indices = domain.indices
        if root.reduction is not None:
            indices = gathered_indices(root.reduction, indices, unknown_indices(root.reduction))
        addresses[root.write, linear(indices, root.write.strides)] = None
    if root.reduction is not None and root.reduction.op in ARG_REDUCTIONS:
        addresses[root.reduction, arg_position(root.reduction, domain)] = None
    if root.reduction is not None and is_scan(root.reduction.op):
        addresses[root.reduction, scan_position(root.reduction, domain)] = None
    return addresses


@dataclass(frozen=True, slots=True)
class _Visit:
    """A node at some indices: its own accesses, and the operands that it reads with their
    indices."""

    addresses: tuple[tuple[object, Index], ...] = ()
    flops: int = 0
    is_matmul: bool = False
    is_shifted_scan: bool = False
    below: tuple[tuple[Node, Indices], ...] = ()


class _MemoryWalk:
    """Traverses from the roots of a group to memory; memoises nodes that several roots read."""

    def __init__(self, group: Group, unification: Unification) -> None:
        self.group = group
        self.unification = unification
        self.members = frozenset(group.members)
        self.reductions = reductions_of(group)
        # Interned indices: comparing them would take most of the time.
        self._interned_indices: dict[Indices, Indices] = {}
        self._visits: dict[tuple[Node, int], _Visit] = {}
        self._evaluations = Evaluations([group])
        self._values: dict[tuple[Node, int], Computed] = {}
        self.computed: dict[Computed, frozenset[Axis]] = {}

    def accesses(self, root: Root) -> _Accesses:
        """The accesses of one root."""
        domain = domain_of(root, self.unification)
        touched = _own(root, domain)
        matmuls: dict[Node, None] = {}
        shifted_scans: dict[Node, None] = {}
        flops = 1
        visited: set[tuple[Node, int]] = set()
        values = root.values if is_scatter_root(root) else (root.value,)
        start = self._interned(domain.indices)
        work = [(node, start) for node in values]
        for matmul in self.group.k_along_lanes & {root.reduction}:
            matmuls[matmul] = None
            flops += OPS[Op.DOT].flops * self.group.hint(matmul.shape[-1])
            right, right_indices = right_operand(matmul, self.unification)
            work.append((right, self._interned(right_indices)))
        while work:
            node, indices = work.pop()
            if (node, id(indices)) in visited:
                continue
            visited.add((node, id(indices)))
            visit = self._visit(node, indices)
            touched |= dict.fromkeys(visit.addresses)
            flops += visit.flops
            if visit.is_matmul:
                matmuls[node] = None
            if visit.is_shifted_scan:
                shifted_scans[node] = None
            work.extend(visit.below)
        return _Accesses(
            tuple(expand(address) for _, address in touched),
            frozenset(x for x, _ in touched if isinstance(x, Tensor)),
            tuple(matmuls),
            flops,
            frozenset(shifted_scans),
        )

    def _interned(self, indices: Indices) -> Indices:
        return self._interned_indices.setdefault(indices, indices)

    def _visit(self, node: Node, indices: Indices) -> _Visit:
        """`indices`: interned."""
        key = node, id(indices)
        if key not in self._visits:
            self._evaluations.add()
            self._visits[key] = self._first_visit(node, indices)
        return self._visits[key]

    def _first_visit(self, node: Node, indices: Indices) -> _Visit:
        leaf = leaf_below(self.group, node)
        if leaf is not None:
            tensor, strides, _ = leaf
            return _Visit(((tensor, linear(indices, strides)),))
        addresses = tuple((node, position) for position in _positions(node, indices))
        contracted, flops = self.unification.contracted, 0
        is_reduction = node in self.reductions
        is_matmul = node in contracted and not is_reduction
        if is_matmul:
            flops = OPS[node.op].flops * self.group.hint(node.inputs[0].shape[-1])
        elif node in self.members or node.op in INLINE:
            flops = OPS[node.op].flops
        if is_reduction:
            is_elsewhere = indices != self.unification.domain[node].indices
            return _Visit(addresses, flops, is_shifted_scan=is_scan(node.op) and is_elsewhere)
        read = operands(node, indices, contracted)
        if node.op is Op.GATHER:
            read = self._gathered(node, indices)
        below = tuple(
            (operand, indices if place is indices else self._interned(place))
            for operand, place in read
        )
        return _Visit(addresses, flops, is_matmul, below=below)

    def _gathered(self, node: Node, indices: Indices) -> Iterator[tuple[Node, Indices]]:
        """The operands of a gather. A computed index distinguishes its source from another
        gather's."""
        source, *index_nodes = node.inputs
        for index_node in index_nodes:
            yield index_node, indices
        values = [Computed("", 0), *(self._value(x, indices) for x in index_nodes)]
        yield source, gathered_indices(node, indices, values)

    def _value(self, node: Node, indices: Indices) -> Computed:
        """A placeholder for the value of `node` there, used as an index."""
        key = node, id(indices)
        if key not in self._values:
            value = Computed(f"?{len(self._values)}", 1)
            self._values[key] = value
            self.computed[value] = self._axes_below(node, indices)
        return self._values[key]

    def _axes_below(self, node: Node, indices: Indices) -> frozenset[Axis]:
        axes: set[Axis] = set()
        work = [(node, indices)]
        visited: set[tuple[Node, int]] = set()
        while work:
            node, indices = work.pop()
            if (node, id(indices)) in visited:
                continue
            visited.add((node, id(indices)))
            visit = self._visit(node, indices)
            for _, address in visit.addresses:
                for variable, _ in expand(address).terms:
                    if isinstance(variable, Axis):
                        axes.add(variable)
                    elif isinstance(variable, Computed):
                        axes |= self.computed[variable]
            work.extend(visit.below)
        return frozenset(axes)


def _positions(node: Node, indices: Indices) -> Indices:
    """Indices whose value enters the computation, not only the memory at them."""
    match node.op:
        case Op.IOTA | Op.CONCAT:
            assert isinstance(node.attr, int)
            return (indices[node.attr],)
        case Op.PAD:
            assert isinstance(node.attr, tuple)
            axes = zip(indices, node.attr, node.inputs[0].shape, node.shape)
            return tuple(index for index, low, size, wide in axes if low != 0 or size != wide)
        case Op.PHILOX:
            return (linear(indices, contiguous_strides(node.shape)),)
        case _:
            return ()
