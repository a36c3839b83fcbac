"""Which products of matrices become part of kernels, and which remain calls of the library.

A library call that multiplies matrices is *inlined* (`matmul_inlining.py`). Planning then decides
what is fused with it. Where that saves less time in memory traffic and launches than the library is
faster at multiplying, the call is closed again (see planner.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, prod

from hemstitch.ir.dims import Dim, evaluate
from hemstitch.ir.graph import Graph, LibraryCall, Node, Op
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.nodes import (
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
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.matmul_rates import Rates
from hemstitch.machine.probes import MatmulProbe
from hemstitch.machine.record import Execution, Machine, MatrixUnits
from hemstitch.matmul.lowering.blocking import in_blocks
from hemstitch.matmul.patterns.gemv import is_vector
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.materialisation import strides_in_memory
from hemstitch.planning.topological_order import Cluster
from hemstitch.planning.work import Vertex
from hemstitch.stitching.matmul_mapping import COLUMNS, LEAST_TILE, MOST_ROWS, rows_of_a_tile
from hemstitch.stitching.online_softmax import is_long
from hemstitch.stitching.refusal import Refusal
from hemstitch.stitching.view_indices import non_strided_reshape

# On a GPU:
BESIDE_SUMS = 2.0  # times longer operands take where columns are added up as well
LEAST_SECONDS = 4e-6  # that the library takes, however little there is to multiply
# On a processor:
TILE_VECTORS = 2  # how wide a tile in registers is
# Of the library's time: by so much rates were wrong about the difference, for layers of other
# shapes than those they were measured with (docs/performance.md).
DOUBT = 0.1


@dataclass(slots=True)
class InlinedMatmuls:
    """`calls`: the library calls that each product stands for, whole or for some columns; `widths`:
    how many columns these calls make; `results`: what they gave. `spared`: bytes that a call would
    move beside multiplying; `fewer`: multiplications that it would do beside those of its products.
    `together`: products that gain in one kernel only; `units`: nodes that planning begins with as
    one; `stored`: reshapes of what is to be in memory. `uses`: how many products multiply with a
    right operand, which is packed once for all; `frozen`: such operands that are packed before any
    call. `turned`: transposed products, whose left operand is the right one of their call.
    `fusion_barriers`: reshapes that no loop over what a product adds up looks through. `refused`:
    calls that are left to the library from the beginning."""

    graph: Graph
    calls: dict[Node, list[LibraryCall]] = field(default_factory=dict)
    widths: dict[Node, Dim] = field(default_factory=dict)
    results: dict[Node, Node] = field(default_factory=dict)
    spared: dict[LibraryCall, Dim] = field(default_factory=dict)
    fewer: Counter[LibraryCall] = field(default_factory=Counter)
    together: dict[LibraryCall, Sequence[Sequence[Node]]] = field(default_factory=dict)
    units: list[list[Node]] = field(default_factory=list)
    stored: set[Node] = field(default_factory=set)
    uses: Counter[Node] = field(default_factory=Counter)
    frozen: set[Node] = field(default_factory=set)
    turned: set[Node] = field(default_factory=set)
    refused: dict[LibraryCall, Refusal] = field(default_factory=dict)

    def right_of_call(self, product: Node) -> Node:
        return product.inputs[0 if product in self.turned else 1]

    @property
    def fusion_barriers(self) -> frozenset[Node]:
        steps = [(p.inputs[0], p.type.rank - 1) for p in self.calls]
        steps += [(p.inputs[1], p.type.rank - 2) for p in self.calls]
        known = strides_in_memory(self.graph)
        found = (non_strided_reshape(factor, axis, known) for factor, axis in steps)
        return frozenset(reshape for reshape in found if reshape is not None) | self.stored


@dataclass(frozen=True, slots=True)
class Weighed:
    """Seconds of a library call, of what a kernel does in its place, and of what that saves; and by
    how many the first two may be wrong."""

    library: float = 0.0
    kernel: float = 0.0
    saved: float = 0.0
    doubt: float = 0.0

    def __add__(self, other: Weighed) -> Weighed:
        return Weighed(
            self.library + other.library,
            self.kernel + other.kernel,
            self.saved + other.saved,
            self.doubt + other.doubt,
        )

    @property
    def gain(self) -> float:
        return self.saved + self.library - self.kernel - self.doubt

    @property
    def refusal(self) -> Refusal:
        if self.kernel == inf:
            return Refusal("matmul", "no kernel multiplies so")
        library, kernel, saved = (
            f"{1e6 * s:.4g} us" for s in (self.library, self.kernel, self.saved)
        )
        return Refusal("matmul", f"{library} by the library, {kernel} in a kernel, {saved} saved")


IMPOSSIBLE = Weighed(kernel=inf)


def refusal_of(
    result: Node, factors: Sequence[Node], hints: Mapping[str, int], machine: Machine
) -> Refusal | None:
    """Whatever is fused: products that cannot gain are not worth planning with."""
    dtype = result.type.dtype
    left, right = factors
    if dtype not in machine.matrix_units or is_vector(left, right):
        return Refusal("matmul", "no kernel multiplies so")
    units = machine.matrix_units[dtype]
    if machine.execution is Execution.SIMT:
        return None
    values = [result, *(node for node in map(below, factors) if node.op is not Op.INPUT)]
    moved = 2 * sum(evaluate(value.type.bytes, hints) for value in values)
    work = evaluate(result.type.size * left.shape[-1], hints)
    saved = moved / machine.memory_bytes_per_second + machine.launch_seconds
    rates = units.rates(dtype)
    fastest = min(rates.transposed, rates.skinny.row, rates.packed.at(_elements(right, hints)).row)
    weighed = Weighed(_by_library(work, right, rates, hints), work * fastest, saved)
    return None if weighed.gain > 0 else weighed.refusal


def without_gain(inlined: InlinedMatmuls, clustering: Clustering) -> dict[LibraryCall, Refusal]:
    """The calls that the library had better do."""
    machine, hints = clustering.trials.machine, clustering.work.hints
    weighed: dict[LibraryCall, Weighed] = {
        call: Weighed(saved=evaluate(bytes_, hints) / machine.memory_bytes_per_second)
        for call, bytes_ in inlined.spared.items()
    }
    for call, multiplications in inlined.fewer.items():
        units = machine.matrix_units[DType.F32]
        saved = 2 * multiplications / units.operations_per_second
        weighed[call] += Weighed(saved=saved)
    kernels: dict[Cluster, _Kernel] = {}
    for product, calls in inlined.calls.items():
        cluster = clustering.cluster_of.get(product)
        one = IMPOSSIBLE
        if cluster is not None and cluster not in clustering.unstitchable:
            kernel = kernels.get(cluster)
            if kernel is None:
                kernel = kernels[cluster] = _Kernel.of(cluster, clustering)
            one = _weighed(product, inlined, clustering, kernel)
        for call in calls:
            weighed[call] = weighed.get(call, Weighed()) + one
    for call, lists in inlined.together.items():
        if any(len({clustering.cluster_of.get(each) for each in some}) > 1 for some in lists):
            weighed[call] = IMPOSSIBLE
    return {call: each.refusal for call, each in weighed.items() if not each.gain > 0}


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What a cluster with products becomes. `inside`: what it makes. `packed`: elements of the
    right operand of one that are laid as vectors want them, where there are no matrix units."""

    kernel: Kernel
    inside: frozenset[Vertex]
    packed: float

    @staticmethod
    def of(cluster: Cluster, clustering: Clustering) -> _Kernel:
        machine, hints = clustering.trials.machine, clustering.work.hints
        kernel = clustering.trials.stitched([clustering.group_of(cluster)], "attempt").kernel
        is_simt = machine.execution is Execution.SIMT
        packed = 0.0 if is_simt else _packed(kernel, hints, machine.threads)
        return _Kernel(kernel, frozenset(cluster.vertices), packed)


def _weighed(
    product: Node, inlined: InlinedMatmuls, clustering: Clustering, kernel: _Kernel
) -> Weighed:
    """A kernel saves traffic that stays on chip and a launch. What several products are added up to
    is counted with the first of them."""
    result, inside = inlined.results[product], kernel.inside
    machine, hints = clustering.trials.machine, clustering.work.hints
    units = machine.matrix_units[product.inputs[0].type.dtype]
    is_simt = machine.execution is Execution.SIMT
    library, ours, doubt = _seconds(product, inlined, clustering, kernel)
    added = [other for other, total in inlined.results.items() if total is result]
    if not inside - _made_for(added, result):
        return Weighed(min(library, ours) if is_simt else library, ours, doubt=doubt)
    saved = _saved(result, inside, clustering) if product is added[0] else 0
    saved += sum(_saved(operand, inside, clustering) for operand in map(below, product.inputs))
    share = _share(product, inlined.widths[product], hints)
    launch = share * machine.launch_seconds
    if is_simt:  # a call takes the host longer, which nobody sees while the GPU multiplies
        work = evaluate(product.type.size * product.inputs[0].shape[-1], hints)
        launch += max(0.0, share * units.call_seconds - 2 * work / units.operations_per_second)
    return Weighed(library, ours, saved / machine.memory_bytes_per_second + launch, doubt)


def _share(product: Node, width: Dim, hints: Mapping[str, int]) -> float:
    """Of the columns that the library makes at once."""
    return evaluate(product.shape[-1], hints) / max(1, evaluate(width, hints))


def _seconds(
    product: Node, inlined: InlinedMatmuls, clustering: Clustering, kernel: _Kernel
) -> tuple[float, float, float]:
    """Of the library, of whose time for all its columns the product has its share; of a kernel of
    ours; and the doubt, where rates come from other shapes."""
    machine, hints, width = (
        clustering.trials.machine,
        clustering.work.hints,
        inlined.widths[product],
    )
    share = _share(product, width, hints)
    measured = _measured(product, width, machine)
    if measured is not None:
        by_library, ours = measured
        return share * by_library, ours, 0.0
    dtype = product.inputs[0].type.dtype
    units = machine.matrix_units[dtype]
    work = evaluate(product.type.size * product.inputs[0].shape[-1], hints)
    if machine.execution is Execution.SIMT:
        library = max(2 * work / units.operations_per_second, share * LEAST_SECONDS)
        return library, _in_tiles(product, work, kernel.kernel, units, clustering), 0.0
    rates, theirs = units.rates(dtype), inlined.right_of_call(product)
    library = _by_library(work, theirs, rates, hints, share)
    doubt = 0.0 if units.measured is None else DOUBT * library
    return library, _in_blocks(product, inlined, kernel, machine, hints), doubt


def _in_blocks(
    product: Node,
    inlined: InlinedMatmuls,
    kernel: _Kernel,
    machine: Machine,
    hints: Mapping[str, int],
) -> float:
    """Without matrix units. The last tile of columns takes as long as any other."""
    (left, right), columns = product.inputs, evaluate(product.shape[-1], hints)
    dtype = left.type.dtype
    rates, tile = machine.matrix_units[dtype].rates(dtype), TILE_VECTORS * machine.lanes
    pace, elements = rates.packed.at(_elements(right, hints)), evaluate(left.type.size, hints)
    is_packed = kernel.packed < inf and right in inlined.frozen
    packing = 0.0 if is_packed else kernel.packed / inlined.uses[right] * pace.operand
    if columns <= CPU.skinny_columns:
        return packing + elements * (rates.skinny.operand + columns * rates.skinny.row)
    row = rates.transposed if product in inlined.turned else pace.row
    return packing + elements * ceil(columns / tile) * tile * row


def _elements(matrices: Node, hints: Mapping[str, int]) -> int:
    """Of one of them."""
    steps, columns = matrices.shape[-2:]
    return evaluate(steps, hints) * evaluate(columns, hints)


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
    by_library = machine.measured.get(MatmulProbe("library", dtype, rows, steps, all_columns, *on))
    ours = machine.measured.get(MatmulProbe("kernel", dtype, rows, steps, columns, *on))
    return None if by_library is None or ours is None else (by_library, ours)


def _by_library(
    work: int, right: Node, rates: Rates, hints: Mapping[str, int], share: float = 1.0
) -> float:
    """On a processor. `share`: of a call, that this is."""
    elements = max(1, _elements(right, hints))
    matrices = evaluate(right.type.size, hints) // elements
    rows = work / max(1, matrices * elements)
    return share * rates.call + rates.library_seconds(matrices, elements, rows)


def _in_tiles(
    product: Node, work: int, kernel: Kernel, units: MatrixUnits, clustering: Clustering
) -> float:
    """With matrix units. Where a kernel needs whole rows its tiles are flat, so that L2 is the
    limit; of few tiles, or a few more than there are multiprocessors, most of these have none."""
    machine, hints = clustering.trials.machine, clustering.work.hints
    columns = _columns(kernel, hints)
    most = max(LEAST_TILE, min(units.tile_elements // columns, MOST_ROWS))
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
    return max(units.seconds(2 * work) * machine.threads / at_once, loaded)


def _packed(kernel: Kernel, hints: Mapping[str, int], threads: int) -> float:
    """How many elements of the right operand of a product are laid as vectors want them, by all
    tasks together, in the mean of the kernel's: once for all tasks; or once for each matrix, and in
    each of them."""
    elements = products = 0
    for nest in (nest for phase in kernel.phases for nest in phase.nests):
        inside = sum(isinstance(statement, Contract) for statement in walk(nest.body))
        if not inside:
            continue
        blocks = in_blocks(nest, threads)
        if blocks is None:
            return inf
        products += inside
        batches = prod(evaluate(axis.extent, hints) for axis in nest.rows[:-1])
        stored = {s.buffer for s in walk(blocks.nest.panels) if isinstance(s, Store)}
        for buffer in blocks.buffers:
            size = evaluate(buffer.size, hints)
            if buffer.role is Role.SHARED:
                elements += size
            elif buffer in stored:
                elements += ceil(batches / threads) * threads * size
    return elements / products


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
    is_stored = value in clustering.work.materialised or any(
        reader not in inside for reader in clustering.work.readers.get(value, ())
    )
    return evaluate(value.type.bytes, clustering.work.hints) * (1 if is_stored else 2)


def below(value: Node) -> Node:
    """What is under the views."""
    while is_view(value.op) and len(value.inputs) == 1:
        value = value.inputs[0]
    return value
