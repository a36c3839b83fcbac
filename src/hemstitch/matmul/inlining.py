"""Inlines library calls that multiply matrices. Takes a graph, gives one in which planning may fuse
them with what stands around: a matmul as DOT with what the call adds and rounds, a convolution or
attention as its pattern writes it (`patterns/registry.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hemstitch.ir.builder import Builder
from hemstitch.ir.calls import Call, Matmul
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import (
    Graph,
    Node,
    Op,
    Range,
    call_of,
    operation_of,
    result_strides,
    strides_in_memory,
    toposort,
    users,
)
from hemstitch.ir.ops import is_elementwise
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Execution, Machine
from hemstitch.matmul.gain import below, refusal_of
from hemstitch.matmul.inlined_matmuls import InlinedMatmul, InlinedMatmuls, PatternSavings
from hemstitch.matmul.patterns.gemv import VectorProduct, is_vector
from hemstitch.matmul.patterns.image_tiles import Behind, nodes_behind
from hemstitch.matmul.patterns.inlined import Inlined
from hemstitch.matmul.patterns.registry import pattern_of
from hemstitch.rewrites.engine import Rule, rewrite
from hemstitch.rewrites.view_propagation import ranges_of
from hemstitch.rewrites.weight_folding import frozen_leaves
from hemstitch.stitching.group import is_member
from hemstitch.stitching.refusal import Refusal
from hemstitch.stitching.view_indices import non_strided_reshape

CONVOLUTIONS = Op.CONVOLUTION, Op.CONVOLUTION_BACKWARD
MULTIPLIED = frozenset({DType.F32, DType.F16, DType.BF16})


def inline_matmuls(
    graph: Graph, machine: Machine, by_library: Collection[Call], *, exact: bool = False
) -> InlinedMatmuls:
    """`graph` with every matmul that the machine's kernels can do as part of it, but for the calls
    in `by_library`. `exact`: by patterns that are exact alone."""
    frozen = {node for node, is_frozen in frozen_leaves(graph).items() if is_frozen}
    inlining = _Inlining(
        *(machine, graph.hints, by_library, _sliced(graph), _shared(graph), frozen),
        *(_elementwise_after_convolutions(graph), exact),
    )
    rules = [
        Rule(frozenset({Op.RESULT}), inlining.result),
        Rule(frozenset({Op.SLICE}), inlining.columns_of_result),
        Rule(frozenset(filter(is_elementwise, Op)), inlining.elementwise_by_tiles),
    ]
    rewritten = rewrite(graph, rules, Builder.after(graph))
    for unit in inlining.tiled:
        inlining.unite(unit)
    return inlining.inlined(rewritten)


def multiplied(graph: Graph) -> set[DType]:
    """Element types of what may be inlined: how fast these are multiplied decides about a plan."""
    calls = ((n.inputs[0], n.type.dtype) for n in toposort(graph.roots) if n.op is Op.RESULT)
    return {dtype for call, dtype in calls if _may_be_inlined(call)}


def _may_be_inlined(call: Node) -> bool:
    if call.op is Op.MATMUL:
        return not is_vector(*call.inputs[-2:])
    return call.op is Op.ATTENTION or call.op in CONVOLUTIONS


@dataclass(frozen=True, slots=True)
class _TiledConvolution:
    """What a convolution gives that multiplies sums of tiles, of which `dots`, and the elementwise
    work after it if its results are images."""

    value: Node
    dots: Sequence[Node]
    operands: Sequence[Node]
    after: Behind | None


@dataclass(frozen=True, slots=True)
class _Inlining:
    """The rules, what they know of the graph, and what they have done. `sliced`: calls whose result
    is read in slices of columns. `shared`: right operands of several calls. `frozen`: what frozen
    weights decide. `elementwise_after`: how many elementwise nodes follow a result of a call."""

    machine: Machine
    hints: Mapping[str, int]
    by_library: Collection[Call]
    sliced: Collection[Call]
    shared: Collection[Node]
    frozen: Collection[Node]
    elementwise_after: Mapping[tuple[Call, object], int]
    exact: bool
    matmuls: dict[Node, InlinedMatmul] = field(default_factory=dict)
    patterns: dict[Call, PatternSavings] = field(default_factory=dict)
    tiled: list[_TiledConvolution] = field(default_factory=list)
    units: list[list[Node]] = field(default_factory=list)
    stored: set[Node] = field(default_factory=set)
    refused: dict[Call, Refusal] = field(default_factory=dict)

    def inlined(self, graph: Graph) -> InlinedMatmuls:
        """`graph`: the rewritten one."""
        sharers = Counter(matmul.right for matmul in self.matmuls.values())
        leaves = frozen_leaves(graph)
        matmuls = {
            dot: replace(
                matmul,
                sharers=sharers[matmul.right],
                is_prepacked=bool(leaves.get(matmul.right)),
            )
            for dot, matmul in self.matmuls.items()
        }
        barriers = frozenset(_broken_factors(graph, matmuls)) | self.stored
        return InlinedMatmuls(graph, matmuls, self.patterns, self.units, barriers, self.refused)

    def result(self, builder: Builder, node: Node) -> Node | None:
        """a result of a library call -> what the call computes"""
        if call_of(node) in self.sliced:
            return None
        return self._matmul(builder, node, node) or self._pattern(builder, node)

    def columns_of_result(self, builder: Builder, node: Node) -> Node | None:
        """a slice of the result of a library call -> what the call computes there"""
        (whole,) = node.inputs
        is_sliced = whole.op is Op.RESULT and call_of(whole) in self.sliced
        return self._matmul(builder, whole, node) if is_sliced else None

    def _matmul(self, builder: Builder, whole: Node, columns: Node) -> Node | None:
        """`columns`: `whole`, or some of its columns."""
        call, operation = call_of(whole), operation_of(whole)
        if call in self.by_library or not isinstance(operation, Matmul) or not _is_dense(whole):
            return None
        *addends, left, right = whole.inputs[0].inputs
        addend = addends[0] if addends else None
        if is_vector(left, right) and self._may_inline(whole):
            vector = VectorProduct.of(builder, left, _cut(builder, right, whole, columns))
            self._store((vector.vector,))
            return _result(builder, vector.sums, addend, whole, columns)
        refusal = refusal_of(whole, (left, right), self.hints, self.machine)
        if refusal is not None:
            self.refused[call] = refusal
            return None
        is_transposed = columns is whole and self._is_better_transposed(left, right)
        if is_transposed:
            within = operation.within and operation.within.transposed
            dot = builder.dot(_transposed(builder, right), _transposed(builder, left), within)
            call_columns, total = dot.shape[-1], _transposed(builder, dot)
        else:
            within = operation.within if columns is whole else None
            dot = total = builder.dot(left, _cut(builder, right, whole, columns), within)
            call_columns = whole.shape[-1]
        result = _result(builder, total, addend, whole, columns)
        self._record(dot, call, result, call_columns, is_transposed=is_transposed)
        return result

    def _record(
        self, dot: Node, call: Call, result: Node, call_columns: Dim, *, is_transposed: bool = False
    ) -> None:
        earlier = self.matmuls[dot].calls if dot in self.matmuls else ()
        calls = (*earlier, call)
        self.matmuls[dot] = InlinedMatmul(dot, calls, result, call_columns, is_transposed)

    def _is_better_transposed(self, left: Node, right: Node) -> bool:
        """Few rows and a large right operand, which no other product has: on processors it would be
        packed, and all of it read by every task. As the left one it is read once, as it lies. So
        few rows that they are columns of less than a vector, where steps lie side by side: also one
        that could be packed before any call."""
        sizes = (*left.shape, *right.shape[1:])
        is_gpu = self.machine.execution is Execution.SIMT
        if is_gpu or len(sizes) > 3 or right in self.shared:
            return False
        rows, steps, columns = (size if isinstance(size, int) else 0 for size in sizes)
        if not 0 < CPU.transposed_ratio * rows <= min(steps, columns):
            return False
        if rows <= CPU.skinny_columns and right.op is Op.PERMUTE and _is_there(right):
            return True
        return (
            rows <= CPU.transposed_rows
            and steps * columns >= CPU.transposed_elements
            and right not in self.frozen
        )

    def _may_inline(self, result: Node) -> bool:
        """On processors; whether its matmuls gain is seen when they are fused."""
        dtype = result.type.dtype
        if call_of(result) in self.by_library or self.machine.execution is Execution.SIMT:
            return False
        return dtype in MULTIPLIED and dtype in self.machine.matrix_units

    def _pattern(self, builder: Builder, node: Node) -> Node | None:
        call, number = call_of(node), node.attr
        assert isinstance(number, int)
        if not self._may_inline(node):
            return None
        operands = node.inputs[0].inputs
        pattern = pattern_of(builder, call, operands, self.machine, exact=self.exact)
        if pattern is None:
            return None
        result = pattern.result(number)
        at_once = len(result.products) if result.is_one_matmul else 1
        for dot, total in result.products:
            self._record(dot, call, total, dot.shape[-1] * at_once)
        self._store(result.stored)
        self._save(call, result)
        if result.is_unit:
            parts = result.parts
            after = Behind.of(parts, self.elementwise_after[call, number]) if parts else None
            dots = [dot for dot, _ in result.products]
            self.tiled.append(_TiledConvolution(result.value, dots, operands, after))
        return result.value

    def _save(self, call: Call, result: Inlined) -> None:
        """What all results of the call save is told with each of them; the rest is added up."""
        known = self.patterns.get(call)
        before = known or PatternSavings(result.spared_by_call)
        self.patterns[call] = PatternSavings(
            before.bytes + result.spared_bytes,
            before.multiplications + result.fewer,
            result.together or before.in_one_kernel,
        )

    def elementwise_by_tiles(self, builder: Builder, node: Node) -> Node | None:
        """elementwise work on images that are made in parts -> the same on each part"""
        after = (t.after for t in self.tiled if t.after and t.after.is_read_by(node))
        return next((work.then(builder, node) for work in after), None)

    def _store(self, reshapes: Iterable[Node]) -> None:
        """What they show is to be in memory."""
        self.stored.update(x for x in reshapes if not _is_there(x))

    def unite(self, tiled: _TiledConvolution) -> None:
        """The matmuls and what they are added up to, with the work after them, are one unit; what
        each side of them is made of is another."""
        value, dots, beside = tiled.value, tiled.dots, list[Node]()
        if after := tiled.after:
            value, beside = after.parts.images, after.beside
            self._store(after.parts.stored)
        lefts, rights = ([dot.inputs[side] for dot in dots] for side in (0, 1))
        sides = [_between(lefts, tiled.operands), _between(rights, tiled.operands)]
        units = [[*_between([value], [*dots, *beside]), *dots], *sides]
        known = {node for unit in self.units for node in unit}
        self.units.extend([node for node in unit if node not in known] for unit in units)


def _broken_factors(graph: Graph, matmuls: Iterable[Node]) -> Iterator[Node]:
    """Reshapes that no loop over what a matmul adds up looks through."""
    known = strides_in_memory(graph)
    for dot in matmuls:
        left, right = dot.inputs
        for factor, axis in ((left, dot.type.rank - 1), (right, dot.type.rank - 2)):
            reshape = non_strided_reshape(factor, axis, known)
            if reshape is not None:
                yield reshape


def _elementwise_after_convolutions(graph: Graph) -> Mapping[tuple[Call, object], int]:
    """How many elementwise nodes follow each result of a convolution and nothing else."""
    nodes, roots = toposort(graph.roots), frozenset(graph.roots)
    readers = users(nodes)
    results = [n for n in nodes if n.op is Op.RESULT and n.inputs[0].op in CONVOLUTIONS]
    return {(call_of(x), x.attr): nodes_behind(x, readers, roots) for x in results}


def _between(ends: Iterable[Node], stops: Collection[Node]) -> list[Node]:
    """What kernels compute from `stops` to `ends`."""
    between: dict[Node, None] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node not in between and node not in stops:
            between[node] = None
            stack.extend(node.inputs)
    return [node for node in between if is_member(node)]


def _transposed(builder: Builder, matrix: Node) -> Node:
    return builder.permute(matrix, (1, 0))


def _shared(graph: Graph) -> set[Node]:
    """What several calls multiply with: it is packed once."""
    rights = Counter[Node]()
    for node in toposort(graph.roots):
        if node.op is Op.MATMUL:
            rights[node.inputs[-1]] += 1
    return {right for right, times in rights.items() if times > 1}


def _sliced(graph: Graph) -> set[Call]:
    """Calls whose result is read in slices along its columns, none of them twice, as the gates of a
    recurrent cell are: a slice of a product is a product with a slice."""
    readers: dict[Node, list[Node]] = {}
    for node in toposort(graph.roots):
        for source in set(node.inputs):
            if source.op is Op.RESULT and source not in graph.roots:
                readers.setdefault(source, []).append(node)
    return {call_of(whole) for whole, slices in readers.items() if _is_partitioned(whole, slices)}


def _is_partitioned(whole: Node, slices: Sequence[Node]) -> bool:
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


def _is_dense(result: Node) -> bool:
    """All operands have elements; the result lies as a kernel would lay it."""
    return (
        result.type.dtype in MULTIPLIED
        and not any(0 in operand.shape for operand in result.inputs[0].inputs)
        and result_strides(result) == contiguous_strides(result.shape)
    )


def _is_there(value: Node) -> bool:
    """It is in memory, whoever reads it."""
    return below(value).op in (Op.INPUT, Op.RESULT)
