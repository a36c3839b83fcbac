"""Which products of matrices become part of kernels, and which remain calls of the library.

A library call that multiplies matrices is *opened*: written as DOT with what the call adds and
rounds, a convolution as several (`convolutions.py`), attention as two with a softmax between them
(`attention.py`). Planning then decides what is fused with it.
Where that saves less time in memory traffic and launches than the library is faster at multiplying,
the call is closed again (see planner.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf, prod

from hemstitch.fusion.attention import attention_of
from hemstitch.fusion.cluster import Clustering
from hemstitch.fusion.convolutions import Convolution
from hemstitch.fusion.demand import strides_in_memory
from hemstitch.fusion.opened import opened_convolution
from hemstitch.fusion.order import Cluster
from hemstitch.fusion.vectors import VectorProduct, is_vector
from hemstitch.fusion.work import Vertex
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import Dim, evaluate
from hemstitch.ir.graph import Graph, LibraryCall, Node, Op, Operand, Range, toposort
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel.blocked import FEW_COLUMNS, in_blocks
from hemstitch.kernel.nodes import (
    AccumulateProduct,
    Contract,
    Kernel,
    Loop,
    Role,
    Store,
    statements,
    walk,
)
from hemstitch.passes.engine import Rule, rewrite
from hemstitch.passes.frozen import frozen_leaves
from hemstitch.passes.layout import ranges_of
from hemstitch.stitch.group import is_member
from hemstitch.stitch.machine import Machine, MatrixUnits
from hemstitch.stitch.online import is_long
from hemstitch.stitch.probe import ProductProbe
from hemstitch.stitch.products import COLUMNS, LEAST_TILE, MOST_ROWS
from hemstitch.stitch.views import broken_at

MULTIPLIED = frozenset({DType.F32, DType.F16, DType.BF16})
LARGE = 1 << 20  # elements of an operand that is worth to be read once, as it lies
MOST_TURNED, LEAST_TIMES = 128, 4  # rows; and how many times as many steps and columns there are


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


def open_products(graph: Graph, machine: Machine, closed: Collection[LibraryCall]) -> Opened:
    """`graph` with every product of the machine in sight, but for the calls in `closed`."""
    leaves = frozen_leaves(graph)
    frozen = {node for node, is_frozen in leaves.items() if is_frozen}
    opening = _Opening(machine, closed, _sliced(graph), _shared(graph), frozen, Opened(graph))
    rules = [
        Rule(frozenset({Op.RESULT}), opening.whole),
        Rule(frozenset({Op.SLICE}), opening.part),
    ]
    opened = opening.opened
    opened.graph = rewrite(graph, rules, Builder.after(graph))
    opened.uses.update(product.inputs[1] for product in opened.calls)
    leaves = frozen_leaves(opened.graph)
    opened.frozen.update(right for right in opened.uses if leaves.get(right))
    return opened


@dataclass(frozen=True, slots=True)
class _Opening:
    machine: Machine
    closed: Collection[LibraryCall]
    sliced: Collection[object]
    shared: Collection[Node]
    frozen: Collection[Node]
    opened: Opened

    def whole(self, builder: Builder, node: Node) -> Node | None:
        """a result of a library call -> what the call computes"""
        if node.inputs[0].attr in self.sliced:
            return None
        return (
            self._columns(builder, node, node)
            or self._convolution(builder, node)
            or self._attention(builder, node)
        )

    def part(self, builder: Builder, node: Node) -> Node | None:
        """a slice of the result of a library call -> what the call computes there"""
        (whole,) = node.inputs
        is_one = whole.op is Op.RESULT and whole.inputs[0].attr in self.sliced
        return self._columns(builder, whole, node) if is_one else None

    def _columns(self, builder: Builder, whole: Node, columns: Node) -> Node | None:
        call, opened = whole.inputs[0].attr, self.opened
        assert isinstance(call, LibraryCall)
        if call in self.closed or not _is_product(call, whole):
            return None
        (left, right), addend = _parts(call, whole.inputs[0].inputs)
        if is_vector(left, right) and self._is_open(whole):
            vector = VectorProduct.of(builder, left, _cut(builder, right, whole, columns))
            self._store((vector.vector,))
            return _result(builder, vector.sums, addend, whole, columns)
        if not _may_gain(whole, (left, right), opened.graph.hints, self.machine):
            return None
        if columns is whole and self._is_better_turned(left, right):
            within = call.within and call.within.turned
            product = builder.dot(_transposed(builder, right), _transposed(builder, left), within)
            opened.turned.add(product)
            opened.widths[product], total = product.shape[-1], _transposed(builder, product)
        else:
            within = call.within if columns is whole else None
            product = total = builder.dot(left, _cut(builder, right, whole, columns), within)
            opened.widths[product] = whole.shape[-1]
        result = _result(builder, total, addend, whole, columns)
        opened.calls.setdefault(product, []).append(call)
        opened.results[product] = result
        return result

    def _is_better_turned(self, left: Node, right: Node) -> bool:
        """Few rows and a large right operand, which no other product has: on processors it would be
        packed, and all of it read by every task. As the left one it is read once, as it lies. So
        few rows that they are columns of less than a vector, where steps lie side by side: also one
        that could be packed before any call."""
        units = self.machine.products[left.type.dtype.bytes]
        sizes = (*left.shape, *right.shape[1:])
        if units.tile or len(sizes) > 3 or right in self.shared:
            return False
        rows, steps, columns = (size if isinstance(size, int) else 0 for size in sizes)
        if not 0 < LEAST_TIMES * rows <= min(steps, columns):
            return False
        if rows <= FEW_COLUMNS and right.op is Op.PERMUTE and _is_there(right):
            return True
        return rows <= MOST_TURNED and steps * columns >= LARGE and right not in self.frozen

    def _is_open(self, result: Node) -> bool:
        """On processors; whether its products gain is seen when they are fused."""
        units, dtype = self.machine.products.get(result.type.dtype.bytes), result.type.dtype
        if result.inputs[0].attr in self.closed or units is None:
            return False
        return not units.tile and dtype in MULTIPLIED

    def _attention(self, builder: Builder, node: Node) -> Node | None:
        call, number, opened = node.inputs[0].attr, node.attr, self.opened
        assert isinstance(call, LibraryCall) and isinstance(number, int)
        attention = attention_of(builder, call, node.inputs[0].inputs)
        if attention is None or not self._is_open(node):
            return None
        value, parts = attention.result(number)
        for part in parts:
            self._store(part.stored)
            for product, made in part.products:
                opened.calls.setdefault(product, []).append(call)
                opened.widths[product] = product.shape[-1]
                opened.results[product] = made
        opened.together[call] = [[product for product, _ in part.products] for part in parts]
        return value

    def _convolution(self, builder: Builder, node: Node) -> Node | None:
        call, number, opened = node.inputs[0].attr, node.attr, self.opened
        assert isinstance(call, LibraryCall) and isinstance(number, int)
        if not self._is_open(node):
            return None
        convolution = opened_convolution(builder, call, node.inputs[0].inputs)
        if convolution is None:
            return None
        value, sums = convolution.result(number)
        products = [(product, each.total) for each in sums for product in each.products]
        for product, total in products:
            opened.calls.setdefault(product, []).append(call)
            opened.widths[product] = product.shape[-1] * len(products)
            opened.results[product] = total
        if isinstance(convolution, Convolution):
            opened.spared[call] = convolution.spared_bytes
        elif sums:
            opened.fewer[call] += convolution.fewer
            opened.spared[call] = opened.spared.get(call, 0) + convolution.spared_bytes
            self._store(convolution.stored(number, value))
            self._unite(value, [product for product, _ in products], node.inputs[0].inputs)
        return value

    def _store(self, reshapes: Iterable[Node]) -> None:
        """What they show is to be in memory."""
        self.opened.stored.update(x for x in reshapes if not _is_there(x))

    def _unite(self, value: Node, products: Sequence[Node], operands: Sequence[Node]) -> None:
        """The products and what they are added up to, and what each side of them is made of."""
        lefts, rights = ([product.inputs[side] for product in products] for side in (0, 1))
        sides = [_between(lefts, operands), _between(rights, operands)]
        units = [[*_between([value], products), *products], *sides]
        known = {node for unit in self.opened.units for node in unit}
        self.opened.units += [[node for node in unit if node not in known] for unit in units]


def _between(ends: Iterable[Node], stops: Collection[Node]) -> list[Node]:
    """What kernels compute from `stops` to `ends`."""
    found: dict[Node, None] = {}
    left = list(ends)
    while left:
        node = left.pop()
        if node not in found and node not in stops:
            found[node] = None
            left.extend(node.inputs)
    return [node for node in found if is_member(node)]


def _transposed(builder: Builder, matrix: Node) -> Node:
    return builder.permute(matrix, (1, 0))


def _shared(graph: Graph) -> set[Node]:
    """What several calls multiply with: it is packed once."""
    rights = Counter[Node]()
    for node in toposort(graph.roots):
        if isinstance(node.attr, LibraryCall) and node.attr.name in _OPERANDS:
            rights[node.inputs[-1]] += 1
    return {right for right, times in rights.items() if times > 1}


def _sliced(graph: Graph) -> set[object]:
    """Calls whose result is read in slices along its columns, none of them twice, as the gates of a
    recurrent cell are: a slice of a product is a product with a slice."""
    readers: dict[Node, list[Node]] = {}
    for node in toposort(graph.roots):
        for source in set(node.inputs):
            if source.op is Op.RESULT and source not in graph.roots:
                readers.setdefault(source, []).append(node)
    return {
        whole.inputs[0].attr for whole, slices in readers.items() if _is_dealt_out(whole, slices)
    }


def _is_dealt_out(whole: Node, slices: Sequence[Node]) -> bool:
    parts: list[tuple[int, int]] = []
    for part in slices:
        if part.op is not Op.SLICE or part.shape[:-1] != whole.shape[:-1]:
            return False
        columns, count = ranges_of(part)[-1], part.shape[-1]
        if columns.step != 1 or not isinstance(columns.start, int) or not isinstance(count, int):
            return False
        parts.append((columns.start, columns.start + count))
    parts.sort()
    return all(end <= start for (_, end), (start, _) in pairwise(parts))


def _cut(builder: Builder, value: Node, whole: Node, columns: Node) -> Node:
    """The columns of `value` that `columns` has of `whole`."""
    if columns is whole:
        return value
    ranges = [*(Range(0) for _ in value.shape[:-1]), ranges_of(columns)[-1]]
    return builder.slice(value, ranges, (*value.shape[:-1], columns.shape[-1]))


def _result(builder: Builder, total: Node, addend: Node | None, whole: Node, columns: Node) -> Node:
    """What a call gives in these columns: `total` and what is added, rounded."""
    if addend is not None:
        wide = builder.broadcast(builder.cast(addend, total.type.dtype), whole.shape)
        total = builder.make(Op.ADD, total, _cut(builder, wide, whole, columns))
    return builder.cast(total, whole.type.dtype)


def _is_product(call: LibraryCall, result: Node) -> bool:
    """All operands are tensors of one type, and the result lies as a kernel would lay it."""
    wanted = _OPERANDS.get(call.name)
    plain = all(isinstance(argument, Operand) for argument in call.arguments)
    if wanted is None or not plain or len(call.arguments) != wanted or call.keywords:
        return False
    first = call.results[0]
    operands = result.inputs[0].inputs
    same = all(operand.type.dtype is result.type.dtype for operand in operands)
    return (
        same
        and result.type.dtype in MULTIPLIED
        and first is not None
        and first[1] == contiguous_strides(result.shape)
    )


def _parts(call: LibraryCall, inputs: Sequence[Node]) -> tuple[Sequence[Node], Node | None]:
    """The two factors, and what is added."""
    operands = [inputs[a.index] for a in call.arguments if isinstance(a, Operand)]
    return operands[-2:], (operands[0] if len(operands) > 2 else None)


_OPERANDS: Mapping[str, int] = {
    "aten.mm.default": 2,
    "aten.bmm.default": 2,
    "aten.addmm.default": 3,
    "aten.baddbmm.default": 3,
}


def _may_gain(
    result: Node, factors: Sequence[Node], hints: Mapping[str, int], machine: Machine
) -> bool:
    """Whatever is fused: products that cannot gain are not worth planning with."""
    units = machine.products.get(result.type.dtype.bytes)
    left, right = factors
    if units is None or is_vector(left, right):
        return False
    if units.tile:
        return True
    values = [result, *(node for node in map(_below, factors) if node.op is not Op.INPUT)]
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
    longer = _longer(product, opened, clustering, kernel)
    added = [other for other, total in opened.results.items() if total is result]
    if not inside - _made_for(added, result):
        return -longer
    saved = _saved(result, inside, clustering) if product is added[0] else 0
    saved += sum(_saved(operand, inside, clustering) for operand in map(_below, product.inputs))
    units = machine.products[product.inputs[0].type.dtype.bytes]
    # On a GPU a call takes the host longer, which is no reason to multiply and do nothing else.
    call = machine.launch_seconds + (units.call_seconds if units.tile else 0.0)
    launch = call * _share(product, opened.widths[product], hints)
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
        loaded = _loaded(product, work, kernel.kernel, units, clustering)
        ours = max(_multiplied(work, units), loaded)
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
        return multiplied
    packed = evaluate(right.type.bytes, hints) / threads
    return share * units.call_seconds + packed / units.operand_bytes_per_second + multiplied


def _multiplied(work: int, units: MatrixUnits) -> float:
    return 2 * work / (units.operations_per_second * units.share)


def _loaded(
    product: Node, work: int, kernel: Kernel, units: MatrixUnits, clustering: Clustering
) -> float:
    """Where a kernel needs whole rows its tiles are flat, so that L2 is the limit."""
    columns = _columns(kernel, clustering.work.hints)
    rows = max(LEAST_TILE, min(units.tile // columns, MOST_ROWS))
    bytes_ = work * (1 / rows + 1 / columns) * product.inputs[0].type.dtype.bytes
    return bytes_ / units.operand_bytes_per_second


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
    widths = [COLUMNS]
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
            work.extend(map(_below, node.inputs))
    return found


def _saved(value: Node, inside: Collection[object], clustering: Clustering) -> int:
    """Bytes not moved since `value` is made and read in one kernel."""
    if value not in inside:
        return 0
    is_stored = value in clustering.work.demanded or any(
        reader not in inside for reader in clustering.work.readers.get(value, ())
    )
    return evaluate(value.type.bytes, clustering.work.hints) * (1 if is_stored else 2)


def _is_there(value: Node) -> bool:
    """It is in memory, whoever reads it."""
    return _below(value).op in (Op.INPUT, Op.RESULT)


def _below(value: Node) -> Node:
    """What is under the views."""
    while is_view(value.op) and len(value.inputs) == 1:
        value = value.inputs[0]
    return value
