"""The loops of every root of a group and the memory they touch, over axes that are walked as one;
and how such loops are laid over tasks and lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, is_scan
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel.index import Axis, Index, Variable, expand, linear
from hemstitch.stitch.axes import Domain, Unification
from hemstitch.stitch.fold import Folding, fold
from hemstitch.stitch.group import (
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
from hemstitch.stitch.views import Indices

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
class Shape:
    """What mapping needs to know of one root: its loops and how it touches memory."""

    root: Root
    axes: tuple[Axis, ...]
    reduced: frozenset[Axis]  # of a scan: what it goes along
    addresses: tuple[Index, ...]
    flops: int
    volume: int  # iterations, at the example sizes
    needs: frozenset[Node]  # reductions of the group whose results it reads
    products: tuple[Node, ...]  # what it computes of matrices
    reads: frozenset[Tensor]
    ahead: frozenset[Node]  # scans that it reads where it is not itself


def shapes_of(
    group: Group, roots: Sequence[Root], unification: Unification
) -> tuple[list[Shape], Folding]:
    """The roots' shapes over folded axes, and that folding."""
    domains = [domain_of(root, unification) for root in roots]
    members, reductions = frozenset(group.members), reductions_of(group)
    known: dict[Indices, Indices] = {}
    touched = [_touched(group, root, unification, members, reductions, known) for root in roots]
    loops = [frozenset(domain.axes) for domain in domains]
    reduced = [_reduced(root, axes, unification) for root, axes in zip(roots, loops)]
    products = [unification.contracted[node] for touch in touched for node in touch.products]
    steps = [product.axes for product in products]
    steps += [unification.domain[node].axes for node in group.along]
    folding = fold(
        (axis for axes in (*(d.axes for d in domains), *steps) for axis in axes),
        [address for touch in touched for address in touch.addresses],
        [*loops, *reduced, *map(frozenset, steps)],
    )
    shapes = [
        Shape(
            root,
            folding.axes(domain.axes),
            frozenset(folding.axes(axis for axis in domain.axes if axis in gone)),
            tuple(folding.index(address) for address in touch.addresses),
            touch.flops,
            prod(group.hint(axis.extent) for axis in domain.axes),
            frozenset(reductions_below(root.values, members, reductions)),
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


def _touched(
    group: Group,
    root: Root,
    unification: Unification,
    members: frozenset[Node],
    reductions: frozenset[Node],
    known: dict[Indices, Indices],
) -> _Touched:
    """What one root needs. `known`: the one object that stands for all equal indices, since theirs
    is most of the time that this takes."""
    domain, contracted = domain_of(root, unification), unification.contracted
    found = _own(root, domain)
    products: dict[Node, None] = {}
    ahead: dict[Node, None] = {}
    flops = 1
    seen: set[tuple[Node, int]] = set()
    along = root.values if is_scatter_root(root) else (root.value,)
    start = known.setdefault(domain.indices, domain.indices)
    work = [(node, start) for node in along]
    for product in group.along & {root.reduction}:
        products[product] = None
        flops += OPS[Op.DOT].flops * group.hint(product.shape[-1])
        work.extend(_interned([right_operand(product, unification)], start, known))
    while work:
        node, indices = work.pop()
        if (node, id(indices)) in seen:
            continue
        seen.add((node, id(indices)))
        leaf = leaf_below(group, node)
        if leaf is not None:
            tensor, strides, _ = leaf
            found[tensor, linear(indices, strides)] = None
            continue
        for position in _positions(node, indices):
            found[node, position] = None
        if node in contracted and node not in reductions:
            products[node] = None
            flops += OPS[node.op].flops * group.hint(node.inputs[0].shape[-1])
        elif node in members or node.op in INLINE:
            flops += OPS[node.op].flops
        if node not in reductions:
            work.extend(_interned(operands(node, indices, contracted), indices, known))
        elif is_scan(node.op) and indices != unification.domain[node].indices:
            ahead[node] = None
    return _Touched(
        tuple(expand(address) for _, address in found),
        frozenset(x for x, _ in found if isinstance(x, Tensor)),
        tuple(products),
        flops,
        frozenset(ahead),
    )


def _interned(
    places: Iterable[tuple[Node, Indices]], last: Indices, known: dict[Indices, Indices]
) -> Iterator[tuple[Node, Indices]]:
    """`last`: in most cases they are these, and known."""
    for node, indices in places:
        yield node, indices if indices is last else known.setdefault(indices, indices)


def _positions(node: Node, indices: Indices) -> Indices:
    """Indices whose value, not only the memory at them, enters the computation."""
    match node.op:
        case Op.IOTA | Op.CONCAT:
            assert isinstance(node.attr, int)
            return (indices[node.attr],)
        case Op.PAD:
            return indices
        case Op.PHILOX:
            return (linear(indices, contiguous_strides(node.shape)),)
        case _:
            return ()
