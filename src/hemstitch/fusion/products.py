"""Which products of matrices become part of kernels, and which remain calls of the library.

A library call that multiplies matrices is *opened*: written as DOT with what the call adds and
rounds. Planning then decides what is fused with it. Where that saves less time in memory traffic
and launches than the library is faster at multiplying, the call is closed again (see planner.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hemstitch.fusion.cluster import Cluster, Clustering
from hemstitch.ir.builder import Builder
from hemstitch.ir.dims import evaluate
from hemstitch.ir.graph import Graph, LibraryCall, Node, Op, Operand
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel.nodes import AccumulateProduct, Contract, Loop, statements
from hemstitch.passes.engine import Rule, rewrite
from hemstitch.stitch.machine import Machine
from hemstitch.stitch.online import is_long
from hemstitch.stitch.products import COLUMNS
from hemstitch.stitch.stitch import stitch

LEAST_ROWS, MOST_ROWS = 16, 128  # of a product's tile
MULTIPLIED = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(slots=True)
class Opened:
    """`calls`: the library calls that each product stands for; `results`: what they gave."""

    graph: Graph
    calls: dict[Node, list[LibraryCall]] = field(default_factory=dict)
    results: dict[Node, Node] = field(default_factory=dict)


def open_products(graph: Graph, machine: Machine, closed: Collection[LibraryCall]) -> Opened:
    """`graph` with every product of the machine in sight, but for the calls in `closed`."""
    opened = Opened(graph)

    def open_call(builder: Builder, node: Node) -> Node | None:
        """the result of a library call -> what the call computes"""
        call = node.inputs[0].attr
        assert isinstance(call, LibraryCall)
        is_for_kernels = node.type.dtype.bytes in machine.products
        if call in closed or not is_for_kernels or not _is_product(call, node):
            return None
        factors, addend = _parts(call, node.inputs[0].inputs)
        product = builder.dot(*factors)
        total = product
        if addend is not None:
            wide = builder.cast(addend, product.type.dtype)
            total = builder.make(Op.ADD, product, builder.broadcast(wide, product.shape))
        result = builder.cast(total, node.type.dtype)
        opened.calls.setdefault(product, []).append(call)
        opened.results[product] = result
        return result

    opened.graph = rewrite(graph, [Rule(frozenset({Op.RESULT}), open_call)], Builder.after(graph))
    return opened


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


def without_gain(opened: Opened, clustering: Clustering, machine: Machine) -> set[LibraryCall]:
    """The calls that the library had better do."""
    found: set[LibraryCall] = set()
    for product, calls in opened.calls.items():
        cluster = clustering.cluster_of.get(product)
        if cluster is None or _gain(product, opened, clustering, cluster, machine) <= 0:
            found.update(calls)
    return found


def _gain(
    product: Node, opened: Opened, clustering: Clustering, cluster: Cluster, machine: Machine
) -> float:
    """Seconds that a kernel saves: traffic that stays on chip and a launch, less what it takes
    longer to multiply than the library."""
    if cluster in clustering.unstitchable:
        return -1.0
    result, inside = opened.results[product], set(cluster.vertices)
    if not inside - _made_for(product, result):
        return -1.0
    saved = _saved(result, inside, clustering)
    saved += sum(_saved(operand, inside, clustering) for operand in map(_below, product.inputs))
    longer = _longer(product, clustering, cluster, machine)
    return saved / machine.memory_bytes_per_second + machine.launch_seconds - longer


def _longer(product: Node, clustering: Clustering, cluster: Cluster, machine: Machine) -> float:
    """Seconds that a kernel of ours multiplies longer than the library: it is slower, and where
    it needs whole rows its tiles are flat, so that L2 is the limit."""
    bytes_ = product.inputs[0].type.dtype.bytes
    units = machine.products[bytes_]
    work = evaluate(product.type.size * product.inputs[0].shape[-1], clustering.hints)
    columns = _columns(clustering, cluster)
    rows = max(LEAST_ROWS, min(units.tile // columns, MOST_ROWS))
    library = 2 * work / units.operations_per_second
    loads = work * (1 / rows + 1 / columns) * bytes_ / units.operand_bytes_per_second
    ours = max(library / units.share, loads)
    return ours - library


def _columns(clustering: Clustering, cluster: Cluster) -> int:
    """Of the widest tile of a product in the cluster's kernel. Long rows go by in blocks."""
    kernel = stitch([clustering.group(cluster.vertices)], clustering.machine, "attempt").kernel
    widths = [COLUMNS]
    for statement in statements(kernel):
        if isinstance(statement, AccumulateProduct):
            widths.append(evaluate(statement.axis.extent, clustering.hints))
        elif isinstance(statement, Loop) and any(isinstance(s, Contract) for s in statement.body):
            extent = statement.axis.extent
            widths.append(COLUMNS if is_long(extent) else evaluate(extent, clustering.hints))
    return 1 << (max(widths) - 1).bit_length()


def _made_for(product: Node, result: Node) -> set[Node]:
    """What stands for the call alone: the product, what it adds, and rounding."""
    found, work = {product}, [result]
    while work:
        node = work.pop()
        if node is not product and node.op in (Op.ADD, Op.CAST):
            found.add(node)
            work.extend(map(_below, node.inputs))
    return found


def _saved(value: Node, inside: Collection[object], clustering: Clustering) -> int:
    """Bytes not moved since `value` is made and read in one kernel."""
    if value not in inside:
        return 0
    is_stored = value in clustering.demanded or any(
        reader not in inside for reader in clustering.readers.get(value, ())
    )
    return evaluate(value.type.bytes, clustering.hints) * (1 if is_stored else 2)


def _below(value: Node) -> Node:
    """What is under the views."""
    while is_view(value.op) and len(value.inputs) == 1:
        value = value.inputs[0]
    return value
