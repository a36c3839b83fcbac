"""Along which axes of its operands an operation runs: what part of each of them it takes to make a
part of its result, and where its result is zero when an operand is zero outside a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from hemstitch.capture.traced_nodes import arguments_of, is_recomputed, name_of, value_of
from hemstitch.joint.slices import Region

Line = Sequence[int | None]
Parts = Mapping[Node, Region | None]

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
ROWS = 2  # the axis of a query's number
VIEWS = ("view", "_unsafe_view", "reshape")
# Pointwise operations that PyTorch does not say are; and those that read no more than a shape.
POINTWISE = (
    *("detach", "_to_copy", "alias", "hardtanh_backward", "elu_backward", "leaky_relu_backward"),
    *("softplus_backward", "mish_backward", "hardswish_backward", "zeros_like", "ones_like"),
    "full_like",
)


@dataclass(frozen=True, slots=True)
class Axes:
    """`lines`: of each operand, which of its axes each axis of the result runs along (None: it is
    the same for all). `fixed`: axes of the result of which no part can be made alone. `sums`: axes
    that are added up along, as they are called in each operand that has them; `factors`: operands
    each of which makes what is added up vanish where it is zero."""

    lines: Sequence[tuple[Node, Line]]
    fixed: Sequence[int] = ()
    sums: Sequence[Mapping[Node, int]] = ()
    factors: Sequence[Node] = ()


def parts_for(node: Node, region: Region) -> Parts | None:
    """What of its operands it takes to make this part of a result alone (None: the whole operand);
    None if that cannot be."""
    if is_reshape(node):
        (x, *_) = arguments_of(node)
        seen = region.viewed(shape_of(node), shape_of(x))
        return None if seen is None else {x: seen}
    axes = axes_of(node)
    if axes is None or region.axis in axes.fixed:
        return None
    parts: dict[Node, Region | None] = {}
    for operand, line in axes.lines:
        axis = line[region.axis]
        part = None if axis is None else region.along(axis)
        if parts.setdefault(operand, part) != part:
            return None
    return parts


def seen_in(node: Node, operand: Node, region: Region) -> Region | None:
    """The part of the result that this part of an operand goes into, and nothing else of it."""
    if is_reshape(node):
        return region.viewed(shape_of(operand), shape_of(node))
    axes = axes_of(node)
    for other, line in () if axes is None else axes.lines:
        if other is operand and region.axis in line:
            axis = line.index(region.axis)
            return None if axes is None or axis in axes.fixed else region.along(axis)
    return None


def added_up(node: Node, operand: Node, region: Region) -> Parts | None:
    """If `operand` is zero outside `region` and is added up along it: what of each operand is
    enough for the whole result."""
    axes = axes_of(node)
    if axes is None or operand not in axes.factors:
        return None
    for names in axes.sums:
        if names.get(operand) == region.axis:
            parts = {added: region.along(axis) for added, axis in names.items()}
            return {**dict.fromkeys(node.all_input_nodes), **parts}
    return None


def shape_of(node: Node) -> Sequence[Any]:
    """Of several results the first one's."""
    value = value_of(node)
    shape: Sequence[Any] = (value if isinstance(value, Tensor) else value[0]).shape
    return shape


def axes_of(node: Node) -> Axes | None:
    """None: nothing is known of it."""
    if node.op != "call_function" or is_recomputed(node) or not has_known_sizes(node):
        return None
    if is_pointwise(node):
        return Axes([(x, _aligned(x, node)) for x in node.all_input_nodes])
    known = TABLE.get(name_of(node))
    return None if known is None else known(node)


def is_reshape(node: Node) -> bool:
    return name_of(node) in VIEWS and not is_recomputed(node) and has_known_sizes(node)


def has_known_sizes(node: Node) -> bool:
    values = [value_of(x) for x in (node, *node.all_input_nodes)]
    tensors = (value for value in tree_leaves(values) if isinstance(value, Tensor))
    return all(isinstance(size, int) for tensor in tensors for size in tensor.shape)


def is_pointwise(node: Node) -> bool:
    tags = node.target.tags if isinstance(node.target, torch._ops.OpOverload) else ()
    is_said = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    are_tensors = all(isinstance(value_of(x), Tensor) for x in (node, *node.all_input_nodes))
    return are_tensors and (is_said or name_of(node) in POINTWISE)


def _aligned(operand: Node, result: Node) -> list[int | None]:
    """As operands are broadcast."""
    mine, whole = shape_of(operand), shape_of(result)
    missing = len(whole) - len(mine)
    return [
        None if axis < missing or (mine[axis - missing] == 1 and size != 1) else axis - missing
        for axis, size in enumerate(whole)
    ]


def _product(node: Node) -> Axes:
    *addend, left, right = arguments_of(node)
    rank = len(shape_of(node))
    batch = range(rank - 2)
    lines: list[tuple[Node, Line]] = [(x, _aligned(x, node)) for x in addend]
    lines += [(left, [*batch, rank - 2, None]), (right, [*batch, None, rank - 1])]
    sums = [{left: rank - 1, right: rank - 2}] if left is not right else []
    return Axes(lines, sums=sums, factors=(left, right))


def _permuted(node: Node) -> Axes:
    x, *how = arguments_of(node)
    order = [*range(len(shape_of(x)))]
    match name_of(node), how:
        case "permute", [axes]:
            order = [order[axis] for axis in axes]
        case "transpose", [one, other]:
            order[one], order[other] = order[other], order[one]
        case _:
            order.reverse()
    return Axes([(x, order)])


def _unsqueezed(node: Node) -> Axes:
    x, axis = arguments_of(node)
    line: list[int | None] = [*range(len(shape_of(x)))]
    line.insert(axis % len(shape_of(node)), None)
    return Axes([(x, line)])


def _squeezed(node: Node) -> Axes:
    x, axes = (*arguments_of(node), None)[:2]
    rank = len(shape_of(x))
    named = {*range(rank)} if axes is None else {axis % rank for axis in _all(axes)}
    gone = {axis for axis in named if shape_of(x)[axis] == 1}
    return Axes([(x, [axis for axis in range(rank) if axis not in gone])])


def _expanded(node: Node) -> Axes:
    x = arguments_of(node)[0]
    return Axes([(x, _aligned(x, node))])


def _selected(node: Node) -> Axes:
    x, axis, _ = arguments_of(node)
    rank = len(shape_of(x))
    return Axes([(x, [n for n in range(rank) if n != axis % rank])])


def _sliced(node: Node) -> Axes:
    x, axis = (*arguments_of(node), 0)[:2]
    rank = len(shape_of(x))
    return Axes([(x, range(rank))], fixed=[axis % rank])


def _joined(node: Node) -> Axes:
    parts, axis = (*arguments_of(node), 0)[:2]
    rank = len(shape_of(node))
    return Axes([(part, range(rank)) for part in parts], fixed=[axis % rank])


def _reduced(node: Node) -> Axes | None:
    x, axes, *rest = (*arguments_of(node), None)[: max(2, len(node.args))]
    rank = len(shape_of(x))
    gone = {axis % rank for axis in _all(axes)} or {*range(rank)}
    keep = node.kwargs.get("keepdim", bool(rest) and rest[0])
    line = [None if axis in gone else axis for axis in range(rank) if keep or axis not in gone]
    if len(line) != len(shape_of(node)):
        return None
    sums = [{x: axis} for axis in gone] if name_of(node) == "sum" else []
    return Axes([(x, line)], sums=sums, factors=(x,))


def _along_one(place: int) -> Callable[[Node], Axes]:
    """Operations that need all elements along an axis, which this argument names."""

    def axes(node: Node) -> Axes:
        rank = len(shape_of(node))
        axis = arguments_of(node)[place] % rank
        return Axes([(x, range(rank)) for x in node.all_input_nodes], fixed=[axis])

    return axes


def _looked_up(node: Node) -> Axes:
    table, indices, *_ = arguments_of(node)
    rank = len(shape_of(indices))
    return Axes([(table, [None] * (rank + 1)), (indices, [*range(rank), None])], fixed=[rank])


def _attention(node: Node) -> Axes | None:
    """The rows of queries, without dropout and of no order."""
    q, k, v, *how = arguments_of(node)
    if any(how) or q in (k, v):
        return None
    lines: list[tuple[Node, Line]] = [(q, [None, None, ROWS, None])]
    lines += [(x, [None] * 4) for x in (k, v)]
    lines += [(mask, [None, None, rows, None]) for mask, rows in _mask(node)]
    return Axes(lines, fixed=[0, 1, 3])


def _attention_backward(node: Node) -> Axes | None:
    """Of keys and values; the gradient of queries has the rows that the given one has."""
    gradient, q, k, v, output, logsumexp, *how = arguments_of(node)
    if any(how) or q in (k, v):
        return None
    rows = dict.fromkeys((gradient, q, output, logsumexp), ROWS)
    rows |= {mask: axis for mask, axis in _mask(node) if axis is not None}
    return Axes([], fixed=range(4), sums=[rows], factors=[gradient])


def _mask(node: Node) -> Iterator[tuple[Node, int | None]]:
    """The mask of attention, and which of its axes the rows of queries run along."""
    mask = node.kwargs.get("attn_mask")
    if isinstance(mask, Node):
        axis = len(shape_of(mask)) - 2
        yield mask, axis if shape_of(mask)[axis] != 1 else None


def _all(axes: int | Sequence[int] | None) -> Iterator[int]:
    if isinstance(axes, int):
        yield axes
    elif axes is not None:
        yield from axes


TABLE: Mapping[str, Callable[[Node], Axes | None]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("t", "transpose", "permute"), _permuted),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "all", "any", "var", "var_mean"), _reduced),
    **dict.fromkeys(("_softmax", "_log_softmax"), _along_one(1)),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _along_one(2)),
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "expand": _expanded,
    "select": _selected,
    "slice": _sliced,
    "cat": _joined,
    "embedding": _looked_up,
    ATTENTION: _attention,
    f"{ATTENTION}_backward": _attention_backward,
}
