"""Thread mapping: which axes are rows dealt out to tasks, which one runs over lanes, in what order.

AStitch's adaptive mapping (section 4.2), for both targets: many rows are dealt out whole; where
rows are few and long, the lane axis is cut into blocks and reductions across blocks go through
partial results; very short rows run lanes across rows. One formula ranks the few candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from hemstitch.ir.dims import Dim, quotient
from hemstitch.ir.graph import Node, Op
from hemstitch.ir.ops import OPS, is_reduction
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel.index import Axis, Index, Variable, at, expand, linear
from hemstitch.stitch.axes import Natural, Unification
from hemstitch.stitch.fold import Folding, fold
from hemstitch.stitch.group import (
    INLINE,
    Group,
    Root,
    Tensor,
    leaf_below,
    operands,
    reductions_below,
)
from hemstitch.stitch.machine import Machine
from hemstitch.stitch.views import Indices

ARG = (Op.ARGMAX, Op.ARGMIN)
STRIDED = 16.0  # vector instructions of a strided access of all lanes, a contiguous one being 1
HORIZONTAL = 12.0  # vector instructions to combine the lanes of one accumulator
KEPT_SHARE = 0.5  # of the arithmetic that later loops of a row do again rather than keep
ROW_BUFFER = 10.0  # vector instructions to pass one scalar through a row buffer
NARROW_ACCUMULATE, WIDE_ACCUMULATE = 2.0, 8.0  # to add a vector to memory, in f32 and in f64
DECODE = 4.0  # vector instructions' time to take one more axis out of a row number
BLOCK = 4096  # most elements of the lane axis in one block, where it is cut
BLOCKS_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Mapping:
    """`rows`: outermost first. `order`: all other axes in loop order, the lane axis last.

    `split`: the lane axis as outer block * inner size + inner, where it was cut.
    """

    rows: tuple[Axis, ...]
    order: tuple[Axis, ...]
    split: dict[Variable, Index] = field(default_factory=dict)

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
    reduced: frozenset[Axis]
    addresses: tuple[Index, ...]
    flops: int
    volume: int  # iterations, at the example sizes
    needs: frozenset[Node]  # reductions of the group whose results it reads
    reads: frozenset[Tensor]


def shapes_of(
    group: Group, roots: Sequence[Root], unification: Unification
) -> tuple[list[Shape], Folding]:
    """The roots' shapes over folded axes, and that folding."""
    naturals = [natural_of(root, unification) for root in roots]
    touched = [_touched(group, root, natural) for root, natural in zip(roots, naturals)]
    loops = [frozenset(natural.axes) for natural in naturals]
    reduced = [
        domain - frozenset(unification.natural[root.reduction].axes)
        if root.reduction is not None
        else frozenset[Axis]()
        for root, domain in zip(roots, loops)
    ]
    folding = fold(
        (axis for natural in naturals for axis in natural.axes),
        [address for touch in touched for address in touch.addresses],
        [*loops, *reduced],
    )
    members = frozenset(group.members)
    shapes = [
        Shape(
            root,
            folding.axes(natural.axes),
            frozenset(folding.axes(axis for axis in natural.axes if axis in gone)),
            tuple(folding.index(address) for address in touch.addresses),
            touch.flops,
            prod(group.hint(axis.extent) for axis in natural.axes),
            frozenset(reductions_below(root.value, members)),
            touch.reads,
        )
        for root, natural, gone, touch in zip(roots, naturals, reduced, touched)
    ]
    return shapes, folding


def natural_of(root: Root, unification: Unification) -> Natural:
    """Where the value of a root is computed: a reduction's operand, or what is written."""
    if root.reduction is not None:
        return unification.operand[root.reduction]
    return unification.stored[root.value]


def arg_position(node: Node, natural: Natural) -> Index:
    """Of ARGMAX and ARGMIN: the index within the reduced axes, flattened."""
    assert isinstance(node.attr, tuple)
    axes = [axis for axis in node.attr if isinstance(axis, int)]
    sizes = tuple(node.inputs[0].shape[axis] for axis in axes)
    return linear([natural.indices[axis] for axis in axes], contiguous_strides(sizes))


@dataclass(frozen=True, slots=True)
class _Touched:
    """`addresses`: of memory that is read and written, and indices that are computed."""

    addresses: tuple[Index, ...]
    reads: frozenset[Tensor]
    flops: int


def _touched(group: Group, root: Root, natural: Natural) -> _Touched:
    """What one root needs."""
    found: dict[tuple[object, Index], None] = {}
    flops = 1
    if root.write is not None:
        found[root.write, linear(natural.indices, root.write.strides)] = None
    if root.reduction is not None and root.reduction.op in ARG:
        found[root.reduction, arg_position(root.reduction, natural)] = None
    members = frozenset(group.members)
    seen: set[tuple[Node, Indices]] = set()
    work = [(root.value, natural.indices)]
    while work:
        node, indices = work.pop()
        if (node, indices) in seen:
            continue
        seen.add((node, indices))
        leaf = leaf_below(group, node)
        if leaf is not None:
            tensor, strides, _ = leaf
            found[tensor, linear(indices, strides)] = None
            continue
        for position in _positions(node, indices):
            found[node, position] = None
        if node in members or node.op in INLINE:
            flops += OPS[node.op].flops
        if not (node in members and is_reduction(node.op)):
            work.extend(operands(node, indices))
    addresses = tuple(expand(address) for _, address in found)
    return _Touched(addresses, frozenset(x for x, _ in found if isinstance(x, Tensor)), flops)


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


def choose(
    group: Group, shapes: Sequence[Shape], machine: Machine
) -> Iterator[tuple[Mapping, list[Shape]]]:
    """Mappings, largest root first, each with the roots that follow it (AStitch's dominants)."""
    left = list(shapes)
    while left:
        dominant = max(left, key=lambda shape: shape.volume)
        mapping = _choose_one(group, dominant, left, machine)
        followers = [s for s in left if set(mapping.rows) <= set(mapping.placed(s.axes))]
        yield mapping, followers
        left = [shape for shape in left if shape not in followers]


def _choose_one(
    group: Group, dominant: Shape, shapes: Sequence[Shape], machine: Machine
) -> Mapping:
    if not dominant.axes:
        return Mapping((), ())
    lane = min(dominant.axes, key=lambda axis: _lane_cost(group, axis, shapes, machine))
    order = _memory_order(group, dominant, shapes, lane)
    return min(
        _candidates(group, order, shapes, machine),
        key=lambda mapping: _seconds(group, mapping, shapes, machine),
    )


def _lane_cost(group: Group, axis: Axis, shapes: Sequence[Shape], machine: Machine) -> float:
    """Vector instructions if `axis` runs over lanes, summed over the roots that have it."""
    extent = max(1, group.hint(axis.extent))
    steps = ceil(extent / machine.lanes) / extent  # per element; short axes waste lanes
    total = 0.0
    for shape in shapes:
        if axis not in shape.axes:
            total += shape.volume * (shape.flops + len(shape.addresses)) / machine.lanes
            continue
        memory = sum(_access_cost(address, axis) for address in shape.addresses)
        total += shape.volume * steps * (shape.flops + memory)
        if axis in shape.reduced:
            total += shape.volume * HORIZONTAL / extent
    return total


def _access_cost(address: Index, axis: Axis) -> float:
    step = address.coefficient(axis)
    return {0: 0.2, 1: 1.0}.get(step, STRIDED) if isinstance(step, int) else STRIDED


def _memory_order(group: Group, dominant: Shape, shapes: Sequence[Shape], lane: Axis) -> list[Axis]:
    """All axes, those with the longest strides first, the lane axis last."""
    strides: dict[Axis, int] = dict.fromkeys(dominant.axes, 0)
    for shape in shapes:
        for axis in shape.axes:
            found = [abs(group.hint(address.coefficient(axis))) for address in shape.addresses]
            strides[axis] = max([strides.get(axis, 0), *found])
    inner = [axis for axis in strides if axis is not lane]
    return [*sorted(inner, key=lambda axis: -strides[axis]), lane]


def _candidates(
    group: Group, order: Sequence[Axis], shapes: Sequence[Shape], machine: Machine
) -> Iterator[Mapping]:
    """Whole rows; one outer axis though it is reduced; rows and blocks of the lane axis; blocks.
    Of equals the first is taken: it walks memory in the longest steps."""
    lane = order[-1]
    reduced = frozenset().union(*(shape.reduced for shape in shapes))
    dominant_axes = max(shapes, key=lambda shape: shape.volume).axes
    outer = [axis for axis in order[:-1] if axis in dominant_axes]
    kept = tuple(axis for axis in outer if axis not in reduced)
    block, inner, split = _cut(group, lane, machine)
    options = dict.fromkeys([kept, *((axis,) for axis in outer), ()])
    for rows in options:
        yield Mapping(rows, tuple(axis for axis in order if axis not in rows))
    if group.hint(block.extent) > 1:
        for rows in options:
            rest = tuple(axis for axis in order[:-1] if axis not in rows)
            yield Mapping((*rows, block), (*rest, inner), split)


def _cut(group: Group, lane: Axis, machine: Machine) -> tuple[Axis, Axis, dict[Variable, Index]]:
    """The lane axis in blocks, so that every thread has some; the last one may be shorter."""
    wanted = ceil(group.hint(lane.extent) / (machine.threads * BLOCKS_PER_THREAD))
    size = min(BLOCK, max(machine.least_block, -(-wanted // 64) * 64))
    blocks: Dim = quotient(lane.extent + (size - 1), size)
    block = Axis(f"{lane.name}b", blocks)
    inner = Axis(f"{lane.name}e", size, block, lane.extent)
    return block, inner, {lane: at(block).scaled(size) + at(inner)}


@dataclass(slots=True)
class _Walk:
    """Roots that share one walk over the rows: they wait for the same things."""

    flops: float = 0.0  # vector instructions of arithmetic; what roots have in common counts once
    memory: float = 0.0  # and of loads and stores


def _seconds(group: Group, mapping: Mapping, shapes: Sequence[Shape], machine: Machine) -> float:
    """Estimated time of all roots under one mapping.

    Roots run in walks: behind each barrier everything is read and computed anew; later in a row
    only what was not kept is. Roots that cannot follow the mapping get a nest of their own.
    """
    rows = set(mapping.rows)
    count = max(1, prod(group.hint(axis.extent) for axis in mapping.rows))
    threads = min(machine.threads, count)
    walks: dict[tuple[int, bool], _Walk] = {}
    phase: dict[Node, int] = {}
    partial: set[Node] = set()
    total = 0.0
    for shape in shapes:
        axes = mapping.placed(shape.axes)
        reduced = frozenset(mapping.placed(shape.reduced))
        first = max((phase[n] + (n in partial) for n in shape.needs if n in phase), default=0)
        waits = any(phase.get(n) == first and n not in partial for n in shape.needs)
        if shape.root.reduction is not None:
            phase[shape.root.reduction] = first
            if reduced & rows or not rows <= set(axes):
                partial.add(shape.root.reduction)
                kept = prod(group.hint(a.extent) for a in axes if a not in reduced)
                total += 2 * kept * machine.threads * 4 / machine.cache_bytes_per_second
        walk = walks.setdefault((first, waits), _Walk())
        walk.flops = max(walk.flops, shape.volume * shape.flops / machine.lanes)
        walk.memory += shape.volume * len(shape.addresses) / machine.lanes
        if shape.reduced:
            walk.memory += _reduction_work(group, mapping, axes, reduced, shape.volume, machine)
    uneven = -(-count // threads) * threads / count
    for (first, waits), walk in walks.items():
        access, again = (1.0, KEPT_SHARE) if waits else (machine.access, 1.0)
        work = walk.memory * access + walk.flops * again
        total += work * uneven / threads / machine.operations_per_second
        if waits or first:
            total += _reload_seconds(walk, count if waits else 1, threads, machine)
    barriers = max((first for first, _ in walks), default=0)
    decode = count * len(mapping.rows[1:]) * DECODE / threads / machine.operations_per_second
    return total + barriers * machine.barrier_seconds + decode


def _reload_seconds(walk: _Walk, rows: int, threads: int, machine: Machine) -> float:
    """A walk that is not the first reads again: from L1 for nothing, else from where the row fits;
    behind a barrier the row is everything."""
    moved = 4.0 * walk.memory * machine.lanes
    row_bytes = moved / rows
    if row_bytes <= machine.l1_bytes:
        return 0.0
    if row_bytes <= machine.l2_bytes:
        return moved / machine.cache_bytes_per_second / threads
    return moved / machine.memory_bytes_per_second


def _reduction_work(
    group: Group,
    mapping: Mapping,
    axes: Sequence[Axis],
    reduced: frozenset[Axis],
    volume: int,
    machine: Machine,
) -> float:
    """Vector instructions to keep the accumulator: lanes combined, or memory read and written."""
    inner = mapping.inner(axes)
    if not inner:
        return 0.0
    if inner[-1] not in reduced:  # an accumulator in memory; see buffers.accumulator_dtype
        each = NARROW_ACCUMULATE if reduced & set(mapping.rows) else WIDE_ACCUMULATE
        return each * volume / machine.lanes
    cost = HORIZONTAL if all(axis in reduced for axis in inner) else HORIZONTAL + ROW_BUFFER
    return cost * volume / max(1, group.hint(inner[-1].extent))
