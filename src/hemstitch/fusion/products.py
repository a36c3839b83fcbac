"""Which products of matrices become part of kernels, and which remain calls of the library.

A library call that multiplies matrices is *opened* (`opening.py`). Planning then decides what is
fused with it. Where that saves less time in memory traffic and launches than the library is faster
at multiplying, the call is closed again (see planner.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, prod

from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.demand import strides_in_memory
from hemstitch.fusion.order import Cluster
from hemstitch.fusion.vectors import is_vector
from hemstitch.fusion.work import Vertex
from hemstitch.ir.dims import Dim, evaluate
from hemstitch.ir.graph import Graph, LibraryCall, Node, Op
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType
from hemstitch.kernel.blocked import in_blocks
from hemstitch.kernel.nodes import (
    AccumulateInto,
    AccumulateProduct,
    Contract,
    Kernel,
    Loop,
    Role,
    Store,
    statements,
    walk,
)
from hemstitch.stitch.machine import Machine, MatrixUnits
from hemstitch.stitch.online import is_long
from hemstitch.stitch.probe import ProductProbe
from hemstitch.stitch.products import COLUMNS, LEAST_TILE, MOST_ROWS, rows_of_a_tile
from hemstitch.stitch.views import broken_at

# On a GPU:
BESIDE_SUMS = 2.0  # times longer operands take where columns are added up as well
LEAST_SECONDS = 4e-6  # that the library takes, however little there is to multiply


@dataclass(slots=True)
class Opened:
    """`calls`: the library calls that each product stands for, whole or for some columns; `widths`:
    how many columns these calls make; `results`: what they gave. `spared`: bytes that a call would
    move beside multiplying; `fewer`: multiplications that it would do beside those
    of its products. `together`: products that gain in one kernel only; `units`:
    nodes that planning begins with as one; `stored`: reshapes of what is to be in memory. `uses`:
    how many products multiply with a right operand, which is packed once for all; `frozen`: such
    operands that are packed before any call. `obstacles`: reshapes that no loop over what a product
    adds up looks through."""

    graph: Graph
    calls: dict[Node, list[LibraryCall]] = field(default_factory=dict)
    widths: dict[Node, Dim] = field(default_factory=dict)
    results: dict[Node, Node] = field(default_factory=dict)
    spared: dict[LibraryCall, Dim] = field(default_factory=dict)
    fewer: Counter[LibraryCall] = field(default_factory=Counter)
    together: dict[LibraryCall, list[list[Node]]] = field(default_factory=dict)
    units: list[list[Node]] = field(default_factory=list)
    stored: set[Node] = field(default_factory=set)
    uses: Counter[Node] = field(default_factory=Counter)
    frozen: set[Node] = field(default_factory=set)
    turned: set[Node] = field(default_factory=set)

    def right_of_call(self, product: Node) -> Node:
        return product.inputs[0 if product in self.turned else 1]

    @property
    def obstacles(self) -> frozenset[Node]:
        steps = [(p.inputs[0], p.type.rank - 1) for p in self.calls]
        steps += [(p.inputs[1], p.type.rank - 2) for p in self.calls]
        known = strides_in_memory(self.graph)
        found = (broken_at(factor, axis, known) for factor, axis in steps)
        return frozenset(reshape for reshape in found if reshape is not None) | self.stored


def may_gain(
    result: Node, factors: Sequence[Node], hints: Mapping[str, int], machine: Machine
) -> bool:
    """Whatever is fused: products that cannot gain are not worth planning with."""
    units = machine.products.get(result.type.dtype.bytes)
    left, right = factors
    if units is None or is_vector(left, right):
        return False
    if units.tile:
        return True
    values = [result, *(node for node in map(below, factors) if node.op is not Op.INPUT)]
    moved = 2 * sum(evaluate(value.type.bytes, hints) for value in values)
    work = evaluate(result.type.size * left.shape[-1], hints)
    saved = moved / machine.memory_bytes_per_second + machine.launch_seconds
    by_library = _by_library(work, right, units, machine.threads, hints)
    return saved > _multiplied(work, units) - by_library


def without_gain(opened: Opened, clustering: Clustering) -> set[LibraryCall]:
    """The calls that the library had better do."""
    machine, hints = clustering.trials.machine, clustering.work.hints
    gains: dict[LibraryCall, float] = {
        call: evaluate(bytes_, hints) / machine.memory_bytes_per_second
        for call, bytes_ in opened.spared.items()
    }
    for call, multiplications in opened.fewer.items():
        units = machine.products[DType.F32.bytes]
        gains[call] += 2 * multiplications / units.operations_per_second
    kernels: dict[Cluster, _Kernel] = {}
    for product, calls in opened.calls.items():
        cluster = clustering.cluster_of.get(product)
        gain = -inf
        if cluster is not None and cluster not in clustering.unstitchable:
            kernel = kernels.get(cluster)
            if kernel is None:
                kernel = kernels[cluster] = _Kernel.of(cluster, clustering)
            gain = _gain(product, opened, clustering, kernel)
        for call in calls:
            gains[call] = gains.get(call, 0.0) + gain
    for call, lists in opened.together.items():
        if any(len({clustering.cluster_of.get(each) for each in some}) > 1 for some in lists):
            gains[call] = -inf
    return {call for call, gain in gains.items() if gain <= 0}


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What a cluster with products becomes. `inside`: what it makes. `packing`: seconds until the
    right operand of one lies as vectors want it, where there are no matrix units."""

    kernel: Kernel
    inside: frozenset[Vertex]
    packing: float

    @staticmethod
    def of(cluster: Cluster, clustering: Clustering) -> _Kernel:
        machine, hints = clustering.trials.machine, clustering.work.hints
        kernel = clustering.trials.stitched([clustering.group_of(cluster)], "attempt").kernel
        dtypes = {
            v.inputs[0].type.dtype
            for v in cluster.vertices
            if isinstance(v, Node) and v.op is Op.DOT
        }
        units = [machine.products[dtype.bytes] for dtype in dtypes]
        packing = max(0.0 if u.tile else _packed(kernel, u, hints, machine.threads) for u in units)
        return _Kernel(kernel, frozenset(cluster.vertices), packing)


def _gain(product: Node, opened: Opened, clustering: Clustering, kernel: _Kernel) -> float:
    """Seconds that a kernel saves: traffic that stays on chip and a launch, less what it takes
    longer to multiply than the library. What several products are added up to is counted with the
    first of them."""
    result, inside = opened.results[product], kernel.inside
    machine, hints = clustering.trials.machine, clustering.work.hints
    units = machine.products[product.inputs[0].type.dtype.bytes]
    longer = _longer(product, opened, clustering, kernel)
    added = [other for other, total in opened.results.items() if total is result]
    if not inside - _made_for(added, result):
        return -max(0.0, longer) if units.tile else -longer
    saved = _saved(result, inside, clustering) if product is added[0] else 0
    saved += sum(_saved(operand, inside, clustering) for operand in map(below, product.inputs))
    share = _share(product, opened.widths[product], hints)
    launch = share * machine.launch_seconds
    if units.tile:  # a call takes the host longer, which nobody sees while the GPU multiplies
        work = evaluate(product.type.size * product.inputs[0].shape[-1], hints)
        launch += max(0.0, share * units.call_seconds - 2 * work / units.operations_per_second)
    return saved / machine.memory_bytes_per_second + launch - longer


def _share(product: Node, width: Dim, hints: Mapping[str, int]) -> float:
    """Of the columns that the library makes at once."""
    return evaluate(product.shape[-1], hints) / max(1, evaluate(width, hints))


def _longer(product: Node, opened: Opened, clustering: Clustering, kernel: _Kernel) -> float:
    """Seconds that a kernel of ours multiplies longer than the library, of whose time for all its
    columns the product has its share."""
    machine, hints, width = clustering.trials.machine, clustering.work.hints, opened.widths[product]
    share = _share(product, width, hints)
    measured = _measured(product, width, machine)
    if measured is not None:
        by_library, ours = measured
        return ours - share * by_library
    units = machine.products[product.inputs[0].type.dtype.bytes]
    work = evaluate(product.type.size * product.inputs[0].shape[-1], hints)
    right, theirs = product.inputs[1], opened.right_of_call(product)
    if units.tile:
        ours = _in_tiles(product, work, kernel.kernel, units, clustering)
    else:
        is_packed = kernel.packing < inf and right in opened.frozen
        packing = 0 if is_packed else kernel.packing / opened.uses[right]
        ours = packing + _multiplied(work, units)
    return ours - _by_library(work, theirs, units, machine.threads, hints, share)


def _measured(product: Node, width: Dim, machine: Machine) -> tuple[float, float] | None:
    """Of this very product, by the library with `width` columns and by a kernel with its own; None
    where that is not measured."""
    sizes = (*product.inputs[0].shape, product.shape[-1], width)
    if machine.measured is None or len(sizes) != 4:
        return None
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(known) < len(sizes):
        return None
    rows, steps, columns, all_columns = known
    dtype, on = product.inputs[0].type.dtype, (machine.threads, machine.lanes)
    by_library = machine.measured.get(ProductProbe("library", dtype, rows, steps, all_columns, *on))
    ours = machine.measured.get(ProductProbe("kernel", dtype, rows, steps, columns, *on))
    return None if by_library is None or ours is None else (by_library, ours)


def _by_library(
    work: int,
    right: Node,
    units: MatrixUnits,
    threads: int,
    hints: Mapping[str, int],
    share: float = 1.0,
) -> float:
    """On a processor it packs the right operand as well. `share`: of a call, that this is."""
    multiplied = 2 * work / units.operations_per_second
    if units.tile:
        return max(multiplied, share * LEAST_SECONDS)
    packed = evaluate(right.type.bytes, hints) / threads
    return share * units.call_seconds + packed / units.operand_bytes_per_second + multiplied


def _multiplied(work: int, units: MatrixUnits) -> float:
    return 2 * work / (units.operations_per_second * units.share)


def _in_tiles(
    product: Node, work: int, kernel: Kernel, units: MatrixUnits, clustering: Clustering
) -> float:
    """With matrix units. Where a kernel needs whole rows its tiles are flat, so that L2 is the
    limit; of few tiles, or a few more than there are multiprocessors, most of these have none."""
    machine, hints = clustering.trials.machine, clustering.work.hints
    columns = _columns(kernel, hints)
    most = max(LEAST_TILE, min(units.tile // columns, MOST_ROWS))
    tiles, flattest, has_sums = 0, most, False
    for nest in (nest for phase in kernel.phases for nest in phase.nests):
        inside = list(walk(nest.body))
        if any(isinstance(statement, Contract | AccumulateProduct) for statement in inside):
            extents = [evaluate(axis.extent, hints) for axis in nest.rows]
            rows = rows_of_a_tile(extents, most, machine.threads)
            tiles += prod(extents[:-1]) * ceil(extents[-1] / rows)
            flattest = min(flattest, rows)
            has_sums |= any(isinstance(statement, AccumulateInto) for statement in inside)
    bytes_ = work * (1 / flattest + 1 / columns) * product.inputs[0].type.dtype.bytes
    loaded = bytes_ / units.operand_bytes_per_second * (BESIDE_SUMS if has_sums else 1.0)
    at_once = max(1, tiles) / ceil(max(1, tiles) / machine.threads)
    return max(_multiplied(work, units) * machine.threads / at_once, loaded)


def _packed(kernel: Kernel, units: MatrixUnits, hints: Mapping[str, int], threads: int) -> float:
    """Until the right operand of a product lies as vectors want it, in the mean of the kernel's:
    once for all tasks; or once for each matrix, and in each of them."""
    bytes_ = products = 0
    for nest in (nest for phase in kernel.phases for nest in phase.nests):
        inside = sum(isinstance(statement, Contract) for statement in walk(nest.body))
        if not inside:
            continue
        found = in_blocks(nest, threads)
        if found is None:
            return inf
        products += inside
        batches = prod(evaluate(axis.extent, hints) for axis in nest.rows[:-1])
        for buffer in found.buffers:
            size = evaluate(buffer.size, hints) * buffer.dtype.bytes
            if buffer.role is Role.SHARED:
                bytes_ += ceil(size / threads)
            elif any(isinstance(s, Store) and s.buffer is buffer for s in walk(found.nest.panels)):
                bytes_ += ceil(batches / threads) * size
    return bytes_ / products / units.operand_bytes_per_second


def _columns(kernel: Kernel, hints: Mapping[str, int]) -> int:
    """Of the widest tile of a product. Long rows go by in blocks."""
    widths = [LEAST_TILE]
    for statement in statements(kernel):
        if isinstance(statement, AccumulateProduct):
            widths.append(evaluate(statement.axis.extent, hints))
        elif isinstance(statement, Loop) and any(isinstance(s, Contract) for s in statement.body):
            extent = statement.axis.extent
            widths.append(COLUMNS if is_long(extent) else evaluate(extent, hints))
    return 1 << (max(widths) - 1).bit_length()


def _made_for(products: Sequence[Node], result: Node) -> set[Node]:
    """What stands for the call alone: the products, what is added to them, and rounding."""
    found, work = set(products), [result]
    while work:
        node = work.pop()
        if node not in found and node.op in (Op.ADD, Op.CAST):
            found.add(node)
            work.extend(map(below, node.inputs))
    return found


def _saved(value: Node, inside: Collection[object], clustering: Clustering) -> int:
    """Bytes not moved since `value` is made and read in one kernel."""
    if value not in inside:
        return 0
    is_stored = value in clustering.work.demanded or any(
        reader not in inside for reader in clustering.work.readers.get(value, ())
    )
    return evaluate(value.type.bytes, clustering.work.hints) * (1 if is_stored else 2)


def below(value: Node) -> Node:
    """What is under the views."""
    while is_view(value.op) and len(value.inputs) == 1:
        value = value.inputs[0]
    return value
