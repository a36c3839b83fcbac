"""Along which axes of its operands an operation of the graph IR runs: what part of each of them it
takes to make a part of its result, and where its result is zero when an operand is zero outside a
part. Total over `Op`: of an operation without a row nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hemstitch.ir.calls import Attention, AttentionBackward, Matmul, Operation
from hemstitch.ir.dims import known
from hemstitch.ir.graph import Address, Node, Op, Range, operation_of
from hemstitch.ir.ops import is_elementwise, is_reduction, is_scan
from hemstitch.rewrites.algebra import is_constant
from hemstitch.rewrites.row_regions import Region

Line = Sequence[int | None]
ROWS = 2  # the axis of a query's number


@dataclass(frozen=True, slots=True)
class Axes:
    """`lines`: of each operand, which of its axes each axis of the result runs along (None: it is
    the same for all). `fixed`: axes of the result of which no part can be made alone. `sums`: axes
    that are added up along, as they are called in each operand that has them; `factors`: operands
    each of which makes what is added up vanish where it is zero. Operands are said by place."""

    lines: Mapping[int, Line]
    fixed: Sequence[int] = ()
    sums: Sequence[Mapping[int, int]] = ()
    factors: Sequence[int] = ()


def operands_of(node: Node) -> tuple[Node, ...]:
    """Of a result of a call, the call's."""
    return node.inputs[0].inputs if node.op is Op.RESULT else node.inputs


def shape_of(node: Node) -> list[int]:
    return [*map(known, node.shape)]


def has_known_sizes(node: Node) -> bool:
    nodes = (node, *operands_of(node))
    return all(isinstance(size, int) for x in nodes for size in x.shape)


def parts_for(node: Node, region: Region) -> list[Region | None] | None:
    """What of each operand it takes to make this part of the result alone (None: the whole); None
    if that cannot be."""
    if node.op is Op.RESHAPE:
        seen = region.viewed(shape_of(node), shape_of(node.inputs[0]))
        return None if seen is None else [seen]
    axes = axes_of(node)
    if axes is None or region.axis in axes.fixed:
        return None
    lines = [axes.lines[place][region.axis] for place in range(len(operands_of(node)))]
    return [None if axis is None else region.along(axis) for axis in lines]


def seen_in(node: Node, place: int, region: Region) -> Region | None:
    """The part of the result that this part of an operand goes into, and nothing else of it."""
    if node.op is Op.RESHAPE:
        return region.viewed(shape_of(node.inputs[0]), shape_of(node))
    axes = axes_of(node)
    line = None if axes is None else axes.lines.get(place)
    if axes is None or line is None or region.axis not in line:
        return None
    axis = line.index(region.axis)
    return None if axis in axes.fixed else region.along(axis)


def added_up(node: Node, place: int, region: Region) -> list[Region | None] | None:
    """If this operand is zero outside `region` and is added up along it: what of each operand is
    enough for the whole result."""
    axes = axes_of(node)
    if axes is None or place not in axes.factors:
        return None
    for names in axes.sums:
        if names.get(place) == region.axis:
            parts = {added: region.along(axis) for added, axis in names.items()}
            return [parts.get(other) for other in range(len(operands_of(node)))]
    return None


def zero_wherever(node: Node) -> Iterable[int]:
    """Operands each of which, where it is zero, makes the result so."""
    if node.op in ZERO_OF_FIRST:
        return (0,)
    if node.op is Op.MUL:
        return (0, 1)
    operation = operation_of(node)
    return (0, 1) if operation == Matmul() else ()


ZERO_OF_FIRST = (
    *(Op.NEG, Op.ABS, Op.SIGN, Op.SQRT, Op.SIN, Op.TAN, Op.TANH, Op.ERF, Op.CAST, Op.DIV),
    *(Op.BROADCAST, Op.PERMUTE, Op.RESHAPE, Op.SLICE, Op.SUM),
)


def zero_where_all(node: Node) -> Sequence[int]:
    """Operands that make the result zero where all of them are: none if nothing is known."""
    match node.op:
        case Op.ADD | Op.SUB | Op.MAXIMUM | Op.MINIMUM:
            return (0, 1)
        case Op.WHERE:
            return [place for place in (1, 2) if not is_constant(node.inputs[place], 0)]
        case Op.CONCAT:
            return range(len(node.inputs))
    return ()


def axes_of(node: Node) -> Axes | None:
    """None: nothing is known of it."""
    if not has_known_sizes(node) or node.op is Op.CHECK:
        return None
    operation = operation_of(node)
    if node.op is Op.RESULT:
        table = CALLS.get(type(operation))
        return None if table is None or operation is None else table(node, operation)
    if is_elementwise(node.op):
        return _same_axes(node)
    if is_reduction(node.op):
        return _reduced(node)
    if is_scan(node.op):
        return _same_axes(node, fixed=[_axis(node)])
    row = TABLE.get(node.op)
    return None if row is None else row(node)


def _same_axes(node: Node, fixed: Sequence[int] = ()) -> Axes:
    return Axes({place: range(node.type.rank) for place in range(len(node.inputs))}, fixed)


def _axis(node: Node) -> int:
    assert isinstance(node.attr, int)
    return node.attr


def _order(node: Node) -> list[int]:
    assert isinstance(node.attr, tuple)
    return [axis for axis in node.attr if isinstance(axis, int)]


def _broadcast(node: Node) -> Axes:
    sizes = enumerate(zip(node.inputs[0].shape, node.shape))
    return Axes({0: [None if own == 1 != size else axis for axis, (own, size) in sizes]})


def _sliced(node: Node) -> Axes:
    return _same_axes(node, fixed=sliced_axes(node))


def sliced_axes(node: Node) -> list[int]:
    """Of a slice, those that it does not give as a whole."""
    assert isinstance(node.attr, tuple)
    parts = enumerate(zip(node.attr, node.inputs[0].shape, node.shape))
    return [axis for axis, (part, whole, size) in parts if part != Range(0) or whole != size]


def padded_axes(node: Node) -> list[int]:
    sizes = enumerate(zip(node.inputs[0].shape, node.shape))
    return [axis for axis, (own, size) in sizes if own != size]


def _padded(node: Node) -> Axes:
    rank = node.type.rank
    return Axes({0: range(rank), 1: [None] * rank}, fixed=padded_axes(node))


def _reduced(node: Node) -> Axes:
    gone = _order(node)
    line = [axis for axis in range(node.inputs[0].type.rank) if axis not in gone]
    sums = [{0: axis} for axis in gone] if node.op is Op.SUM else []
    return Axes({0: line}, sums=sums, factors=(0,))


def _gathered(node: Node) -> Axes:
    rank = node.type.rank
    source: list[int | None] = [None] * rank
    fixed: list[int] = []
    addresses = node.attr if isinstance(node.attr, tuple) else ()
    for axis, address in enumerate(addresses):
        if isinstance(address, Address) and address.axis is not None:
            source[address.axis] = axis
            if node.inputs[0].shape[axis] != node.shape[address.axis]:
                fixed.append(address.axis)
    lines = {place: range(rank) for place in range(1, len(node.inputs))}
    return Axes({0: source, **lines}, fixed)


def _multiplied(node: Node, operation: Operation) -> Axes:
    assert isinstance(operation, Matmul)
    rank, start = node.type.rank, int(operation.has_addend)
    batch = range(rank - 2)
    lines: dict[int, Line] = {
        start: [*batch, rank - 2, None],
        start + 1: [*batch, None, rank - 1],
    }
    if operation.has_addend:
        lines[0] = _aligned(operands_of(node)[0], node)
    # A band is said by the numbers of rows, columns and steps, which those of a part are not.
    fixed = range(rank) if operation.within is not None else ()
    sums = [{start: rank - 1, start + 1: rank - 2}] if operation.within is None else []
    return Axes(lines, fixed, sums, factors=(start, start + 1))


def _aligned(operand: Node, result: Node) -> list[int | None]:
    """As operands are broadcast."""
    missing = result.type.rank - operand.type.rank
    sizes = [*enumerate(result.shape)]
    return [
        None if n < missing or (operand.shape[n - missing] == 1 != size) else n - missing
        for n, size in sizes
    ]


def _attended(node: Node, operation: Operation) -> Axes | None:
    """The rows of queries, where their order is of no importance."""
    assert isinstance(operation, Attention)
    if operation.is_causal or operation.within is not None:
        return None
    rank = node.type.rank
    lines: dict[int, Line] = dict.fromkeys((1, 2), [None] * rank)
    lines[0] = [None, None, ROWS, None][:rank]
    if operation.has_mask:
        axis = _mask_rows(operands_of(node)[3])
        lines[3] = [None, None, axis, None][:rank]
    return Axes(lines, fixed=[axis for axis in range(rank) if axis != ROWS])


def _attended_backward(node: Node, operation: Operation) -> Axes | None:
    """Of keys and values; the gradient of queries has the rows that the given one has."""
    assert isinstance(operation, AttentionBackward)
    attention = operation.attention
    if attention.is_causal or attention.within is not None:
        return None
    rows = dict.fromkeys((0, 1, 4, 5), ROWS)
    if attention.has_mask:
        axis = _mask_rows(operands_of(node)[6])
        rows |= {} if axis is None else {6: axis}
    return Axes({}, fixed=range(4), sums=[rows], factors=[0])


def _mask_rows(mask: Node) -> int | None:
    """Which of its axes the rows of queries run along."""
    axis = mask.type.rank - 2
    return axis if mask.shape[axis] != 1 else None


TABLE: Mapping[Op, Callable[[Node], Axes]] = {
    Op.BROADCAST: _broadcast,
    Op.PERMUTE: lambda node: Axes({0: _order(node)}),
    Op.SLICE: _sliced,
    Op.PAD: _padded,
    Op.CONCAT: lambda node: _same_axes(node, fixed=[_axis(node)]),
    Op.GATHER: _gathered,
}
CALLS: Mapping[type, Callable[[Node, Operation], Axes | None]] = {
    Matmul: _multiplied,
    Attention: _attended,
    AttentionBackward: _attended_backward,
}
