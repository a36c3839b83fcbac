"""Opens library calls that multiply matrices: written as DOT with what the call adds and rounds, a
convolution as several (`matmul/patterns/convolution_choice.py`), attention as two with a softmax
between them (`matmul/patterns/attention.py`). Takes a graph, gives one in which planning may fuse
them with what stands around."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import (
    Graph,
    LibraryCall,
    Node,
    Op,
    Operand,
    Range,
    toposort,
    users,
)
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Execution, Machine
from hemstitch.matmul.patterns.attention import NAME as ATTENTION
from hemstitch.matmul.patterns.convolutions import named
from hemstitch.matmul.patterns.gemv import VectorProduct, is_vector
from hemstitch.matmul.patterns.image_tiles import Behind, nodes_behind
from hemstitch.matmul.patterns.registry import pattern_of
from hemstitch.planning.matmul_gain import InlinedMatmuls, below, refusal_of
from hemstitch.rewrites.engine import Rule, rewrite
from hemstitch.rewrites.view_propagation import ranges_of
from hemstitch.rewrites.weight_folding import frozen_leaves
from hemstitch.stitching.group import is_member

MULTIPLIED = frozenset({DType.F32, DType.F16, DType.BF16})
LARGE = 1 << 20  # elements of an operand that is worth to be read once, as it lies
MOST_TURNED, LEAST_TIMES = 128, 4  # rows; and how many times as many steps and columns there are


def inline_matmuls(
    graph: Graph, machine: Machine, closed: Collection[LibraryCall]
) -> InlinedMatmuls:
    """`graph` with every product of the machine in sight, but for the calls in `closed`."""
    leaves = frozen_leaves(graph)
    frozen = {node for node, is_frozen in leaves.items() if is_frozen}
    inlined = InlinedMatmuls(graph)
    sliced, shared = _sliced(graph), _shared(graph)
    opening = _Inlining(machine, closed, sliced, shared, frozen, _behind(graph), inlined)
    rules = [
        Rule(frozenset({Op.RESULT}), opening.whole),
        Rule(frozenset({Op.SLICE}), opening.part),
        Rule(frozenset(filter(is_elementwise, Op)), opening.then),
    ]
    inlined.graph = rewrite(graph, rules, Builder.after(graph))
    for tiled in opening.tiled:
        opening.unite(tiled)
    inlined.uses.update(product.inputs[1] for product in inlined.calls)
    leaves = frozen_leaves(inlined.graph)
    inlined.frozen.update(right for right in inlined.uses if leaves.get(right))
    return inlined


def multiplied(graph: Graph) -> set[DType]:
    """Element types of what may be inlined: how fast these are multiplied decides about a plan."""
    calls = ((n.inputs[0], n.type.dtype) for n in toposort(graph.roots) if n.op is Op.RESULT)
    return {dtype for call, dtype in calls if _may_be_opened(call)}


def _may_be_opened(node: Node) -> bool:
    call = node.attr
    assert isinstance(call, LibraryCall)
    if call.name in _OPERANDS:
        return not is_vector(*node.inputs[-2:])
    return call.name == ATTENTION or _convolves(call)


@dataclass(frozen=True, slots=True)
class _Inlining:
    machine: Machine
    closed: Collection[LibraryCall]
    sliced: Collection[object]
    shared: Collection[Node]
    frozen: Collection[Node]
    behind: Mapping[tuple[object, object], int]
    inlined: InlinedMatmuls
    tiled: list[_Tiled] = field(default_factory=list)

    def whole(self, builder: Builder, node: Node) -> Node | None:
        """a result of a library call -> what the call computes"""
        if node.inputs[0].attr in self.sliced:
            return None
        return self._columns(builder, node, node) or self._pattern(builder, node)

    def part(self, builder: Builder, node: Node) -> Node | None:
        """a slice of the result of a library call -> what the call computes there"""
        (whole,) = node.inputs
        is_one = whole.op is Op.RESULT and whole.inputs[0].attr in self.sliced
        return self._columns(builder, whole, node) if is_one else None

    def _columns(self, builder: Builder, whole: Node, columns: Node) -> Node | None:
        call, inlined = whole.inputs[0].attr, self.inlined
        assert isinstance(call, LibraryCall)
        if call in self.closed or not _is_product(call, whole):
            return None
        (left, right), addend = _parts(call, whole.inputs[0].inputs)
        if is_vector(left, right) and self._is_open(whole):
            vector = VectorProduct.of(builder, left, _cut(builder, right, whole, columns))
            self._store((vector.vector,))
            return _result(builder, vector.sums, addend, whole, columns)
        refusal = refusal_of(whole, (left, right), inlined.graph.hints, self.machine)
        if refusal is not None:
            inlined.refused[call] = refusal
            return None
        if columns is whole and self._is_better_turned(left, right):
            within = call.within and call.within.turned
            product = builder.dot(_transposed(builder, right), _transposed(builder, left), within)
            inlined.turned.add(product)
            inlined.widths[product], total = product.shape[-1], _transposed(builder, product)
        else:
            within = call.within if columns is whole else None
            product = total = builder.dot(left, _cut(builder, right, whole, columns), within)
            inlined.widths[product] = whole.shape[-1]
        result = _result(builder, total, addend, whole, columns)
        inlined.calls.setdefault(product, []).append(call)
        inlined.results[product] = result
        return result

    def _is_better_turned(self, left: Node, right: Node) -> bool:
        """Few rows and a large right operand, which no other product has: on processors it would be
        packed, and all of it read by every task. As the left one it is read once, as it lies. So
        few rows that they are columns of less than a vector, where steps lie side by side: also one
        that could be packed before any call."""
        sizes = (*left.shape, *right.shape[1:])
        is_gpu = self.machine.execution is Execution.SIMT
        if is_gpu or len(sizes) > 3 or right in self.shared:
            return False
        rows, steps, columns = (size if isinstance(size, int) else 0 for size in sizes)
        if not 0 < LEAST_TIMES * rows <= min(steps, columns):
            return False
        if rows <= CPU.skinny_columns and right.op is Op.PERMUTE and _is_there(right):
            return True
        return rows <= MOST_TURNED and steps * columns >= LARGE and right not in self.frozen

    def _is_open(self, result: Node) -> bool:
        """On processors; whether its products gain is seen when they are fused."""
        dtype = result.type.dtype
        if result.inputs[0].attr in self.closed or self.machine.execution is Execution.SIMT:
            return False
        return dtype in MULTIPLIED and dtype in self.machine.matrix_units

    def _pattern(self, builder: Builder, node: Node) -> Node | None:
        call, number, inlined = node.inputs[0].attr, node.attr, self.inlined
        assert isinstance(call, LibraryCall) and isinstance(number, int)
        if not self._is_open(node):
            return None
        operands = node.inputs[0].inputs
        pattern = pattern_of(builder, call, operands, self.machine)
        if pattern is None:
            return None
        result = pattern.result(number)
        products = result.products
        for product, total in products:
            inlined.calls.setdefault(product, []).append(call)
            together = len(products) if result.is_one_matmul else 1
            inlined.widths[product] = product.shape[-1] * together
            inlined.results[product] = total
        if result.together:
            inlined.together[call] = result.together
        if result.spared_by_call:
            inlined.spared[call] = result.spared_by_call
        self._store(result.stored)
        if result.is_unit:
            inlined.fewer[call] += result.fewer
            inlined.spared[call] = inlined.spared.get(call, 0) + result.spared_bytes
            parts, left = result.parts, self.behind[call, number]
            behind = Behind.of(parts, left) if parts else None
            made = [product for product, _ in products]
            self.tiled.append(_Tiled(result.value, made, operands, behind))
        return result.value

    def then(self, builder: Builder, node: Node) -> Node | None:
        """elementwise work on images that are made in parts -> the same on each part"""
        found = (t.behind for t in self.tiled if t.behind and t.behind.is_read_by(node))
        return next((behind.then(builder, node) for behind in found), None)

    def _store(self, reshapes: Iterable[Node]) -> None:
        """What they show is to be in memory."""
        self.inlined.stored.update(x for x in reshapes if not _is_there(x))

    def unite(self, tiled: _Tiled) -> None:
        """The products and what they are added up to, with the work behind, and what each side of
        them is made of."""
        value, products, beside = tiled.value, tiled.products, []
        if behind := tiled.behind:
            value, beside = behind.parts.images, behind.beside
            self._store(behind.parts.stored)
        lefts, rights = ([product.inputs[side] for product in products] for side in (0, 1))
        sides = [_between(lefts, tiled.operands), _between(rights, tiled.operands)]
        units = [[*_between([value], [*products, *beside]), *products], *sides]
        known = {node for unit in self.inlined.units for node in unit}
        self.inlined.units += [[node for node in unit if node not in known] for unit in units]


@dataclass(frozen=True, slots=True)
class _Tiled:
    """What a convolution gives that multiplies sums of tiles, of which `products`, and what follows
    it if its results are images."""

    value: Node
    products: Sequence[Node]
    operands: Sequence[Node]
    behind: Behind | None


def _behind(graph: Graph) -> Mapping[tuple[object, object], int]:
    """How many elementwise nodes follow each result of a convolution and nothing else."""
    nodes, roots = toposort(graph.roots), frozenset(graph.roots)
    readers = users(nodes)
    results = [node for node in nodes if node.op is Op.RESULT and _convolves(node.inputs[0].attr)]
    return {(x.inputs[0].attr, x.attr): nodes_behind(x, readers, roots) for x in results}


def _convolves(call: object) -> bool:
    return isinstance(call, LibraryCall) and named(call) is not None


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
        *others, columns = ranges_of(part)
        count = part.shape[-1]
        if any(other != Range(0) for other in others):  # backwards, as `flip` has it
            return False
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
    """All operands have elements, and one type; the result lies as a kernel would lay it."""
    wanted = _OPERANDS.get(call.name)
    plain = all(isinstance(argument, Operand) for argument in call.arguments)
    if wanted is None or not plain or len(call.arguments) != wanted or call.keywords:
        return False
    first = call.results[0]
    operands = result.inputs[0].inputs
    same = all(operand.type.dtype is result.type.dtype for operand in operands)
    return (
        same
        and not any(0 in operand.shape for operand in operands)
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


def _is_there(value: Node) -> bool:
    """It is in memory, whoever reads it."""
    return below(value).op in (Op.INPUT, Op.RESULT)
