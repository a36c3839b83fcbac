"""The loops of every root of a group and the memory they touch, over axes that are walked as one;
and how such loops are laid over tasks and lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from math import prod

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, is_scan
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, expand, linear
from hemstitch.stitching.axis_collapsing import Folding, fold
from hemstitch.stitching.dimension_unification import Domain, Unification
from hemstitch.stitching.group import (
    INLINE,
    Group,
    Root,
    Tensor,
    addressed,
    factors,
    is_scatter_root,
    leaf_below,
    operands,
    reductions_below,
    reductions_of,
    unknown,
)
from hemstitch.stitching.recomputation import Evaluations
from hemstitch.stitching.view_indices import Indices

ARG = (Op.ARGMAX, Op.ARGMIN)


@dataclass(frozen=True, slots=True)
class Mapping:
    """`rows`: outermost first. `order`: all other axes in loop order, the lane axis last.

    `split`: the lane axis as outer block * inner size + inner, where it was cut. `once`: the lane
    axis, where no row of it can be walked a second time. `atomic`: rows add to the same elements.
    """

    rows: tuple[Axis, ...]
    order: tuple[Axis, ...]
    split: dict[Variable, Index] = field(default_factory=dict)
    once: Axis | None = None
    atomic: bool = False

    def placed(self, axes: Iterable[Axis]) -> list[Axis]:
        found: list[Axis] = []
        for axis in axes:
            if axis in self.split:
                found += [v for v, _ in self.split[axis].terms if isinstance(v, Axis)]
            else:
                found.append(axis)
        return found

    def deals_out(self, axes: Iterable[Axis]) -> bool:
        """No two rows see the same element of a tensor with these axes."""
        return bool(self.rows) and set(self.rows) <= set(self.placed(axes))

    def inner(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Those of `axes` that are looped over inside a row, in loop order."""
        wanted = set(axes)
        return tuple(axis for axis in self.order if axis in wanted)


@dataclass(frozen=True, slots=True)
class RootShape:
    """What mapping needs to know of one root: its loops and how it touches memory."""

    root: Root
    axes: tuple[Axis, ...]
    reduced: frozenset[Axis]  # of a scan: what it goes along
    addresses: tuple[Index, ...]
    computed: MappingOf[Computed, frozenset[Axis]]  # in addresses: what each index depends on
    flops: int
    volume: int  # iterations, at the example sizes
    needs: frozenset[Node]  # reductions of the group whose results it reads
    products: tuple[Node, ...]  # what it computes of matrices
    reads: frozenset[Tensor]
    ahead: frozenset[Node]  # scans that it reads where it is not itself

    @property
    def stored(self) -> Index | None:
        """Of `addresses`, the one that is written."""
        return None if self.root.write is None else self.addresses[0]


def shapes_of(
    group: Group, roots: Sequence[Root], unification: Unification
) -> tuple[list[RootShape], Folding]:
    """The roots' shapes over folded axes, and that folding."""
    domains = [domain_of(root, unification) for root in roots]
    walk = _MemoryWalk(group, unification)
    touched = [walk.touched(root) for root in roots]
    loops = [frozenset(domain.axes) for domain in domains]
    reduced = [_reduced(root, axes, unification) for root, axes in zip(roots, loops)]
    products = [node for touch in touched for node in touch.products]
    steps = [unification.contracted[node].axes for node in products]
    steps += [unification.domain[node].axes for node in group.along]
    # Where both operands repeat one row, nothing that is read tells rows from columns.
    results = [unification.domain[node] for node in products]
    columns = [frozenset(result.within(result.indices[-1])) for result in results]
    folding = fold(
        (axis for axes in (*(d.axes for d in domains), *steps) for axis in axes),
        [address for touch in touched for address in touch.addresses],
        [*loops, *reduced, *map(frozenset, steps), *columns],
    )
    shapes = [
        RootShape(
            root,
            folding.axes(domain.axes),
            frozenset(folding.axes(axis for axis in domain.axes if axis in gone)),
            tuple(folding.index(address) for address in touch.addresses),
            {v: frozenset(folding.axes(axes)) for v, axes in walk.computed.items()},
            touch.flops,
            prod(group.hint(axis.extent) for axis in domain.axes),
            frozenset(reductions_below(root.values, walk.members, walk.reductions)),
            touch.products,
            touch.reads,
            touch.ahead,
        )
        for root, domain, gone, touch in zip(roots, domains, reduced, touched)
    ]
    return shapes, folding


def _reduced(root: Root, loops: frozenset[Axis], unification: Unification) -> frozenset[Axis]:
    """Those of a root's loops that no row can be dealt out along without meeting the others."""
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
    """Where the value of a root is computed: a reduction's operand, or what is written."""
    if root.reduction is not None:
        return unification.operand[root.reduction]
    return unification.stored[root.value]


def right_operand(product: Node, unification: Unification) -> tuple[Node, Indices]:
    """That of a product, and where one step of one element reads it."""
    (step,) = unification.contracted[product].indices
    return product.inputs[1], factors(unification.domain[product].indices, step)[1]


def arg_position(node: Node, domain: Domain) -> Index:
    """Of ARGMAX and ARGMIN: the index within the reduced axes, flattened."""
    assert isinstance(node.attr, tuple)
    axes = [axis for axis in node.attr if isinstance(axis, int)]
    sizes = tuple(node.inputs[0].shape[axis] for axis in axes)
    return linear([domain.indices[axis] for axis in axes], contiguous_strides(sizes))


@dataclass(frozen=True, slots=True)
class _Touched:
    """`addresses`: of memory that is read and written, and indices that are computed."""

    addresses: tuple[Index, ...]
    reads: frozenset[Tensor]
    products: tuple[Node, ...]
    flops: int
    ahead: frozenset[Node]


def _own(root: Root, domain: Domain) -> dict[tuple[object, Index], None]:
    """The addresses of what a root itself writes, or compares the positions of."""
    found: dict[tuple[object, Index], None] = {}
    if root.write is not None:
        indices = domain.indices
        if root.reduction is not None:
            indices = addressed(root.reduction, indices, unknown(root.reduction))
        found[root.write, linear(indices, root.write.strides)] = None
    if root.reduction is not None and root.reduction.op in ARG:
        found[root.reduction, arg_position(root.reduction, domain)] = None
    if root.reduction is not None and is_scan(root.reduction.op):
        found[root.reduction, scan_position(root.reduction, domain)] = None
    return found


@dataclass(frozen=True, slots=True)
class _Visit:
    """What one node at one place does itself, and what it reads, where."""

    addresses: tuple[tuple[object, Index], ...] = ()
    flops: int = 0
    is_product: bool = False
    is_ahead: bool = False
    below: tuple[tuple[Node, Indices], ...] = ()


class _MemoryWalk:
    """From the roots of a group down to memory: what several read is looked at once."""

    def __init__(self, group: Group, unification: Unification) -> None:
        self.group = group
        self.unification = unification
        self.members = frozenset(group.members)
        self.reductions = reductions_of(group)
        # The one object that stands for all equal indices, since theirs is most of the time.
        self._same: dict[Indices, Indices] = {}
        self._visits: dict[tuple[Node, int], _Visit] = {}
        self._evaluations = Evaluations([group])
        self._values: dict[tuple[Node, int], Computed] = {}
        self.computed: dict[Computed, frozenset[Axis]] = {}

    def touched(self, root: Root) -> _Touched:
        """What one root needs."""
        domain = domain_of(root, self.unification)
        found = _own(root, domain)
        products: dict[Node, None] = {}
        ahead: dict[Node, None] = {}
        flops = 1
        seen: set[tuple[Node, int]] = set()
        along = root.values if is_scatter_root(root) else (root.value,)
        start = self._interned(domain.indices)
        work = [(node, start) for node in along]
        for product in self.group.along & {root.reduction}:
            products[product] = None
            flops += OPS[Op.DOT].flops * self.group.hint(product.shape[-1])
            right, place = right_operand(product, self.unification)
            work.append((right, self._interned(place)))
        while work:
            node, indices = work.pop()
            if (node, id(indices)) in seen:
                continue
            seen.add((node, id(indices)))
            visit = self._visit(node, indices)
            found |= dict.fromkeys(visit.addresses)
            flops += visit.flops
            if visit.is_product:
                products[node] = None
            if visit.is_ahead:
                ahead[node] = None
            work.extend(visit.below)
        return _Touched(
            tuple(expand(address) for _, address in found),
            frozenset(x for x, _ in found if isinstance(x, Tensor)),
            tuple(products),
            flops,
            frozenset(ahead),
        )

    def _interned(self, indices: Indices) -> Indices:
        return self._same.setdefault(indices, indices)

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
        is_product = node in contracted and not is_reduction
        if is_product:
            flops = OPS[node.op].flops * self.group.hint(node.inputs[0].shape[-1])
        elif node in self.members or node.op in INLINE:
            flops = OPS[node.op].flops
        if is_reduction:
            is_elsewhere = indices != self.unification.domain[node].indices
            return _Visit(addresses, flops, is_ahead=is_scan(node.op) and is_elsewhere)
        read = operands(node, indices, contracted)
        if node.op is Op.GATHER:
            read = self._gathered(node, indices)
        below = tuple(
            (operand, indices if place is indices else self._interned(place))
            for operand, place in read
        )
        return _Visit(addresses, flops, is_product, below=below)

    def _gathered(self, node: Node, indices: Indices) -> Iterator[tuple[Node, Indices]]:
        """What a gather reads. Its source is read somewhere else than another gather's."""
        source, *index_nodes = node.inputs
        for index_node in index_nodes:
            yield index_node, indices
        values = [Computed("", 0), *(self._value(x, indices) for x in index_nodes)]
        yield source, addressed(node, indices, values)

    def _value(self, node: Node, indices: Indices) -> Computed:
        """Stands for the value of `node` there, used as an index."""
        key = node, id(indices)
        if key not in self._values:
            value = Computed(f"?{len(self._values)}", 1)
            self._values[key] = value
            self.computed[value] = self._axes_below(node, indices)
        return self._values[key]

    def _axes_below(self, node: Node, indices: Indices) -> frozenset[Axis]:
        axes: set[Axis] = set()
        work = [(node, indices)]
        seen: set[tuple[Node, int]] = set()
        while work:
            node, indices = work.pop()
            if (node, id(indices)) in seen:
                continue
            seen.add((node, id(indices)))
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
    """Indices whose value, not only the memory at them, enters the computation."""
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
