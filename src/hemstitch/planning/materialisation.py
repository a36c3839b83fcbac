"""Materialisation requirements: which values any plan must store, and in which layout. These are
results, mutated inputs and operands of library calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hemstitch.ir.calls import LibraryCall, Operand
from hemstitch.ir.dims import Dim
from hemstitch.ir.graph import Graph, InputAttr, Node, Op, call_of, strides_in_memory, toposort
from hemstitch.ir.layout import without_gaps
from hemstitch.ir.ops import is_call, is_view
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.planning.graph_results import materialise_outputs, materialise_saved
from hemstitch.planning.materialised_views import (
    Alias,
    Materialisation,
    alias_of,
    existing_copy,
    new_tensor,
    opaque_alias,
    same_strides,
)
from hemstitch.stitching.group import MOST_CONCAT_PARTS, Tensor, Write, is_member
from hemstitch.stitching.view_indices import splits_whole_axes

MOST_VIEWS = 64  # that a reader looks through


def materialisation(
    graph: Graph, fusion_barriers: frozenset[Node] = frozenset()
) -> Materialisation:
    """The requirements of `graph`. `fusion_barriers`: as in `Materialisation`."""
    needs = Materialisation(fusion_barriers=fusion_barriers, hints=graph.hints)
    nodes = toposort(graph.roots)
    for node, strides in strides_in_memory(graph).items():
        needs.tensors[node] = Tensor(node, strides)
    for result, argument in _in_place(graph, nodes):
        needs.tensors[result] = needs.tensors[argument]
        needs.in_place.add(result)
    views_below: dict[Node, int] = {}
    for node in nodes:
        if node.op is Op.RESHAPE or node.op is Op.CONCAT:
            _materialise_fusion_barriers(needs, node, node in fusion_barriers)
        views_below[node] = _count_views(needs, node, views_below)
    materialise_outputs(needs, graph)
    for node in nodes:
        if is_call(node.op):
            call = call_of(node)
            needs.operands[node] = tuple(
                _operand(needs, value, strides)
                for value, strides in zip(node.inputs, call.operand_strides)
            )
    materialise_saved(needs, graph)
    return needs


def _in_place(graph: Graph, nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Results of library calls that can be written over an argument of the graph, with that
    argument. The call must be the only reader of the old contents, and must read them with the
    result's layout."""
    readers = Counter(source for node in nodes for source in node.inputs)
    returned = {output.value for output in graph.outputs}
    for output in graph.outputs:
        result, argument = output.value, output.mutates
        call = result.inputs[0].attr if result.op is Op.RESULT else None
        if argument is None or argument in returned or not isinstance(call, LibraryCall):
            continue
        arguments, strides = call.arguments, call.operand_strides
        is_alone = readers[argument] == arguments.count(Operand(0)) == 1 and arguments[
            0
        ] == Operand(0)
        own = argument.attr.strides if isinstance(argument.attr, InputAttr) else ()
        read = strides[0] if strides else None
        if (
            call.in_place is not None
            and is_alone
            and result.inputs[0].inputs[0] is argument
            and result.type == argument.type
            and read is not None
            and same_strides(result.shape, own, read)
        ):
            yield result, argument


def _materialise_fusion_barriers(
    needs: Materialisation, node: Node, is_fusion_barrier: bool
) -> None:
    """Stores the operand of views that kernels cannot look through: concatenations of many parts,
    and reshapes that split axes unevenly."""
    if node.op is Op.CONCAT and len(node.inputs) > MOST_CONCAT_PARTS:
        tensor = needs.tensors[node] = Tensor(node, contiguous_strides(node.shape))
        needs.write(node, tensor)
    elif node.op is Op.RESHAPE and (
        is_fusion_barrier or not splits_whole_axes(node.inputs[0].shape, node.shape)
    ):
        (source,) = node.inputs
        known = needs.tensors.get(source)
        contiguous = contiguous_strides(source.shape)
        if known is None:
            _materialise(needs, source)
        elif not same_strides(source.shape, known.strides, contiguous):
            tensor = needs.tensors[node] = Tensor(node, contiguous_strides(node.shape))
            needs.writes.append(Write(source, tensor, contiguous))


def _materialise(needs: Materialisation, node: Node) -> None:
    tensor = needs.tensors[node] = Tensor(node, contiguous_strides(node.shape))
    if not is_member(node):
        needs.write(node, tensor)


def _count_views(needs: Materialisation, node: Node, views_below: dict[Node, int]) -> int:
    """How many views a reader of `node` looks through, counted per path. If they exceed MOST_VIEWS,
    the operand with the most is stored."""
    if not is_view(node.op) or node.type.dtype is DType.OPAQUE:
        return 1
    counts = {x: 1 if x in needs.tensors else views_below[x] for x in node.inputs}
    while node not in needs.tensors and sum(counts[x] for x in node.inputs) >= MOST_VIEWS:
        deepest = max(counts, key=lambda x: counts[x])
        _materialise(needs, deepest)
        counts[deepest] = 1
    return 1 + sum(counts[x] for x in node.inputs)


def _operand(needs: Materialisation, value: Node, strides: tuple[Dim, ...] | None) -> Alias:
    """An alias of a tensor in memory with the traced strides, else of a new tensor."""
    if value.type.dtype is DType.OPAQUE:
        return opaque_alias(needs, value)
    layout = contiguous_strides(value.shape) if strides is None else strides
    alias = alias_of(needs.in_memory, value)
    if alias is not None and (strides is None or same_strides(value.shape, alias.strides, layout)):
        needs.require(alias)
        return alias
    layout = without_gaps(value.shape, layout, needs.hints)
    if is_member(value) and value not in needs.tensors:
        tensor = needs.tensors[value] = Tensor(value, layout)
    else:
        copy = existing_copy(needs, value, layout)
        tensor = copy or needs.write(value, new_tensor(needs, value, layout))
    return Alias(tensor, value.shape, layout, 0)
