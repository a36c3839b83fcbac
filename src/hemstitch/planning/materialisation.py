"""Which values must be in memory whatever the plan, and in what layout: results, mutated inputs and
operands of library calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import (
    Graph,
    InputAttr,
    LibraryCall,
    Node,
    Op,
    Operand,
    result_strides,
    toposort,
)
from hemstitch.ir.layout import without_gaps
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.planning.graph_results import demand_outputs, demand_shared
from hemstitch.planning.materialised_views import (
    Alias,
    Materialisation,
    agree,
    alias_of,
    another,
    copy_of,
    uncopied,
)
from hemstitch.stitching.group import MOST_CONCAT_PARTS, Tensor, Write, is_member
from hemstitch.stitching.view_indices import splits_whole_axes

MOST_VIEWS = 64  # between an element and where it is read


def materialisation(
    graph: Graph, fusion_barriers: frozenset[Node] = frozenset()
) -> Materialisation:
    """`fusion_barriers`: as in `Materialisation`."""
    found = Materialisation(fusion_barriers=fusion_barriers, hints=graph.hints)
    nodes = toposort(graph.roots)
    for node, strides in strides_in_memory(graph).items():
        found.tensors[node] = Tensor(node, strides)
    for result, argument in _in_place(graph, nodes):
        found.tensors[result] = found.tensors[argument]
        found.in_place.add(result)
    below: dict[Node, int] = {}
    for node in nodes:
        if node.op is Op.RESHAPE or node.op is Op.CONCAT:
            _materialise_fusion_barriers(found, node, node in fusion_barriers)
        below[node] = _looked_through(found, node, below)
    demand_outputs(found, graph)
    for node in nodes:
        if node.op is Op.LIBRARY:
            call = node.attr
            assert isinstance(call, LibraryCall)
            found.operands[node] = tuple(
                _operand(found, value, strides)
                for value, strides in zip(node.inputs, call.operand_strides)
            )
    demand_shared(found, graph)
    return found


def strides_in_memory(graph: Graph) -> dict[Node, tuple[Dim, ...]]:
    """Of inputs, and of what library calls give."""
    found: dict[Node, tuple[Dim, ...]] = {}
    for node in graph.inputs:
        assert isinstance(node.attr, InputAttr)
        found[node] = node.attr.strides
    results = (node for node in toposort(graph.roots) if node.op is Op.RESULT)
    return found | {node: result_strides(node) for node in results}


def _in_place(graph: Graph, nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Results of library calls that replace an argument of the graph, and these: the call writes
    where it reads, if it is the only one to read the old contents, and reads them as they lie.
    However a new result would lie, this one lies there."""
    readers = Counter(source for node in nodes for source in node.inputs)
    returned = {output.value for output in graph.outputs}
    for output in graph.outputs:
        result, argument = output.value, output.mutates
        call = result.inputs[0].attr if result.op is Op.RESULT else None
        if argument is None or argument in returned or not isinstance(call, LibraryCall):
            continue
        given, strides = call.arguments, call.operand_strides
        is_alone = readers[argument] == given.count(Operand(0)) == 1 and given[0] == Operand(0)
        own = argument.attr.strides if isinstance(argument.attr, InputAttr) else ()
        read = strides[0] if strides else None
        if (
            call.in_place is not None
            and is_alone
            and result.inputs[0].inputs[0] is argument
            and result.type == argument.type
            and read is not None
            and agree(result.shape, own, read)
        ):
            yield result, argument


def _materialise_fusion_barriers(
    found: Materialisation, node: Node, is_fusion_barrier: bool
) -> None:
    """Views that no loop of a reader can look through get memory of their own: concatenations of
    many parts, and what is below a reshape that cuts axes unevenly."""
    if node.op is Op.CONCAT and len(node.inputs) > MOST_CONCAT_PARTS:
        tensor = found.tensors[node] = Tensor(node, contiguous_strides(node.shape))
        found.write(node, tensor)
    elif node.op is Op.RESHAPE and (
        is_fusion_barrier or not splits_whole_axes(node.inputs[0].shape, node.shape)
    ):
        (source,) = node.inputs
        known = found.tensors.get(source)
        contiguous = contiguous_strides(source.shape)
        if known is None:
            _materialise(found, source)
        elif not agree(source.shape, known.strides, contiguous):
            tensor = found.tensors[node] = Tensor(node, contiguous_strides(node.shape))
            found.writes.append(Write(source, tensor, contiguous))


def _materialise(found: Materialisation, node: Node) -> None:
    tensor = found.tensors[node] = Tensor(node, contiguous_strides(node.shape))
    if not is_member(node):
        found.write(node, tensor)


def _looked_through(found: Materialisation, node: Node, below: dict[Node, int]) -> int:
    """How many views a reader of `node` looks through, one as often as there are paths to it. Where
    they are too many, the operand with the most gets memory of its own."""
    if not is_view(node.op) or node.type.dtype is DType.OPAQUE:
        return 1
    counts = {x: 1 if x in found.tensors else below[x] for x in node.inputs}
    while node not in found.tensors and sum(counts[x] for x in node.inputs) >= MOST_VIEWS:
        crowded = max(counts, key=lambda x: counts[x])
        _materialise(found, crowded)
        counts[crowded] = 1
    return 1 + sum(counts[x] for x in node.inputs)


def _operand(found: Materialisation, value: Node, strides: tuple[Dim, ...] | None) -> Alias:
    """An alias of what is in memory where its strides are as traced, else a tensor of its own."""
    if value.type.dtype is DType.OPAQUE:
        return uncopied(found, value)
    wanted = contiguous_strides(value.shape) if strides is None else strides
    alias = alias_of(found.in_memory, value)
    if alias is not None and (strides is None or agree(value.shape, alias.strides, wanted)):
        found.keep(alias)
        return alias
    wanted = without_gaps(value.shape, wanted, found.hints)
    if is_member(value) and value not in found.tensors:
        tensor = found.tensors[value] = Tensor(value, wanted)
    else:
        made = copy_of(found, value, wanted)
        tensor = made or found.write(value, another(found, value, wanted))
    return Alias(tensor, value.shape, wanted, 0)
