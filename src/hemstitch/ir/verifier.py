"""What holds of any graph. Passes run it after each stage; it says which node breaks which rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from hemstitch.errors import InternalError
from hemstitch.ir.calls import Call, LibraryCall, Operand, StructuredCall, Within, has_effects
from hemstitch.ir.dims import Dim, SymbolicDim, product, symbols
from hemstitch.ir.elementwise import ELEMENTWISE
from hemstitch.ir.failure import EXCEPTIONS, Failure
from hemstitch.ir.graph import (
    CALLED,
    Address,
    Attr,
    Graph,
    InputAttr,
    Node,
    Op,
    Output,
    Range,
    Windows,
)
from hemstitch.ir.ops import OPS, SCANNED, ResultType, highest, is_call, lowest
from hemstitch.ir.printer import describe
from hemstitch.ir.structured import result_types
from hemstitch.ir.types import DType, TensorType, TypeKind

Problems = Iterator[str]


def verify(graph: Graph) -> None:
    """Raises InternalError with the first thing that is wrong."""
    for problem in _problems(graph):
        raise InternalError(f"invalid graph: {problem}")


def _problems(graph: Graph) -> Problems:
    if _has_cycle((*graph.inputs, *graph.roots)):
        yield "a node needs its own value"
        return
    known = set(graph.symbols)
    inputs = set(graph.inputs)
    for node in _reachable((*graph.inputs, *graph.roots)):
        for problem in chain(_node_problems(node), _symbol_problems(node, known)):
            yield f"{describe(node)}: {problem}"
        if node.op is Op.INPUT and node not in inputs:
            yield f"{describe(node)}: is not among the graph's inputs"
    yield from _input_problems(graph)
    yield from _output_problems(graph)
    yield from _effect_problems(graph)


# --- the graph as a whole


def _reachable(roots: Iterable[Node]) -> list[Node]:
    """Unlike `toposort` in no order, so that it ends for a cycle too."""
    reachable: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in reachable:
            reachable[node] = None
            stack.extend(node.inputs)
    return list(reachable)


def _has_cycle(roots: Iterable[Node]) -> bool:
    """Takes away nodes whose operands are all gone; what is left is in or behind a cycle."""
    nodes = _reachable(roots)
    missing = {node: len(node.inputs) for node in nodes}
    readers: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        for operand in node.inputs:
            readers[operand].append(node)
    ready = [node for node, count in missing.items() if count == 0]
    gone = 0
    while ready:
        gone += 1
        for reader in readers[ready.pop()]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    return gone < len(nodes)


def _input_problems(graph: Graph) -> Problems:
    positions: set[int] = set()
    for node in graph.inputs:
        if not isinstance(node.attr, InputAttr):
            yield f"{describe(node)}: stands among the graph's inputs"
        elif node.attr.position in positions:
            yield f"{describe(node)}: another input has this position"
        else:
            positions.add(node.attr.position)


def _output_problems(graph: Graph) -> Problems:
    mutated: set[Node] = set()
    for index, output in enumerate(graph.outputs):
        for problem in _output_faults(output, graph, mutated):
            yield f"output {index} ({describe(output.value)}): {problem}"


def _output_faults(output: Output, graph: Graph, mutated: set[Node]) -> Problems:
    value, target = output.value, output.mutates
    yield from _strides(output.strides, value.type)
    if is_call(value.op):
        yield "a call is no value; its RESULT is"
    if target is None:
        return
    if target not in graph.inputs:
        yield "mutates something that is not an input of the graph"
    elif target.type != value.type:
        yield f"mutates an input of type {target.type}"
    if target in mutated:
        yield "mutates an input that another output mutates"
    mutated.add(target)


def _effect_problems(graph: Graph) -> Problems:
    for node in graph.effects:
        if not has_effects(node.attr):
            yield f"{describe(node)}: stands among the effects but has none"


def _symbol_problems(node: Node, known: set[str]) -> Problems:
    unknown = {name for size in _sizes(node) for name in symbols(size)} - known
    if unknown:
        yield f"no argument gives {', '.join(sorted(unknown))}"


def _sizes(node: Node) -> Iterator[Dim]:
    yield from node.shape
    match node.attr:
        case InputAttr():
            yield from node.attr.strides
        case SymbolicDim():
            yield node.attr
        case tuple():
            yield from (part.start for part in node.attr if isinstance(part, Range))


# --- one node


@dataclass(frozen=True, slots=True)
class _Row:
    """`attr`: is the attribute of the right type; `kinds`: what the operands' elements may be."""

    attr: Callable[[Attr], bool]
    check: Callable[[Node], Problems]
    kinds: frozenset[TypeKind] = frozenset((TypeKind.BOOL, TypeKind.INT, TypeKind.FLOAT))


def _node_problems(node: Node) -> Problems:
    """The checks of one op may rely on the attribute and the operand count, so these come first."""
    row, arity = _ROWS[node.op], OPS[node.op].arity
    if arity not in (None, len(node.inputs)):
        yield f"takes {arity} operands, has {len(node.inputs)}"
    elif not row.attr(node.attr):
        yield f"has an attribute of type {type(node.attr).__name__}"
    elif any(operand.type.dtype.kind not in row.kinds for operand in node.inputs):
        yield "does not take operands of these element types"
    else:
        yield from (f"has a negative size {size}" for size in node.shape if _surely(size, -1))
        yield from row.check(node)
        yield from _result_problems(node)


def _result_problems(node: Node) -> Problems:
    dtype = node.type.dtype
    match OPS[node.op].result:
        case ResultType.SAME:
            expected = node.inputs[-1].type.dtype
        case ResultType.BOOL:
            expected = DType.BOOL
        case ResultType.INDEX:
            expected = DType.I64
        case ResultType.GIVEN:
            expected = dtype
    if dtype is not expected:
        yield f"gives {expected}"


def _surely(size: Dim, at_most: int) -> bool:
    return isinstance(size, int) and size <= at_most


def _input(node: Node) -> Problems:
    assert isinstance(node.attr, InputAttr)
    yield from _strides(node.attr.strides, node.type)


def _strides(strides: tuple[Dim, ...], type_: TensorType) -> Problems:
    """One an axis; an opaque tensor may have none, as a sparse one does."""
    has_none = type_.dtype is DType.OPAQUE and not strides
    if len(strides) != type_.rank and not has_none:
        yield f"{len(strides)} strides for {type_.rank} axes"


def _constant(node: Node) -> Problems:
    expected = {TypeKind.BOOL: bool, TypeKind.INT: int, TypeKind.FLOAT: float}.get(
        node.type.dtype.kind
    )
    if type(node.attr) is not expected:
        yield f"its value is a {type(node.attr).__name__}"
    elif expected is int and not _fits(node.attr, node.type.dtype):
        yield "its value does not fit its element type"


def _fits(value: Attr, dtype: DType) -> bool:
    return isinstance(value, int) and lowest(dtype) <= value <= highest(dtype)


def _size(node: Node) -> Problems:
    if node.type != TensorType((), DType.I64):
        yield "a size is an i64 scalar"


def _iota(node: Node) -> Problems:
    if node.type.dtype is not DType.I64:
        yield "an index is an i64"
    yield from _axis(node.attr, node.type.rank)


def _philox(node: Node) -> Problems:
    if node.inputs[0].type != TensorType((), DType.I64):
        yield "its seed is an i64 scalar"
    if node.type.dtype is not DType.F32:
        yield "gives f32"


def _axis(axis: Attr, rank: int) -> Problems:
    if not isinstance(axis, int) or not 0 <= axis < rank:
        yield f"there is no axis {axis}"


def _elementwise(node: Node) -> Problems:
    for operand in node.inputs:
        if operand.shape != node.shape:
            yield f"an operand has the shape of {operand.type}: broadcasts are explicit"
    if len({operand.type.dtype for operand in node.inputs}) > 1:
        yield "its operands differ in element type: casts are explicit"


def _where(node: Node) -> Problems:
    condition, x, y = node.inputs
    if condition.type.dtype is not DType.BOOL:
        yield "its condition is not bool"
    if any(operand.shape != node.shape for operand in node.inputs):
        yield "an operand has another shape: broadcasts are explicit"
    if x.type.dtype is not y.type.dtype:
        yield "its branches differ in element type: casts are explicit"


def _check(node: Node) -> Problems:
    condition, x = node.inputs
    if condition.type.dtype is not DType.BOOL:
        yield "its condition is not bool"
    if condition.shape != node.shape or x.type != node.type:
        yield "gives something else than its operand"
    if isinstance(node.attr, Failure) and node.attr.error not in EXCEPTIONS:
        yield f"raises {node.attr.error}"


def _cast(node: Node) -> Problems:
    yield from _elementwise(node)
    if node.type.dtype is DType.OPAQUE:
        yield "casts to opaque"


def _view(node: Node) -> Problems:
    if node.type.dtype is not node.inputs[0].type.dtype:
        yield "changes the element type"


def _broadcast(node: Node) -> Problems:
    yield from _view(node)
    (x,) = node.inputs
    if x.type.rank != node.type.rank:
        yield "changes the number of axes"
    elif any(old not in (1, new) for old, new in zip(x.shape, node.shape)):
        yield "only axes of size 1 grow"


def _reshape(node: Node) -> Problems:
    yield from _view(node)
    if product(node.inputs[0].shape) != product(node.shape):
        yield "changes the number of elements"


def _permute(node: Node) -> Problems:
    yield from _view(node)
    (x,) = node.inputs
    order = _integers(node)
    if sorted(order) != list(range(x.type.rank)):
        yield f"{order} is no order of {x.type.rank} axes"
    elif node.shape != tuple(x.shape[axis] for axis in order):
        yield "its shape does not follow from the order"


def _slice(node: Node) -> Problems:
    yield from _view(node)
    (x,) = node.inputs
    assert isinstance(node.attr, tuple)
    if not len(node.attr) == x.type.rank == node.type.rank:
        yield f"{len(node.attr)} ranges for {x.type.rank} axes, result with {node.type.rank}"
        return
    for axis, (part, old, new) in enumerate(zip(node.attr, x.shape, node.shape)):
        assert isinstance(part, Range)
        if part.step == 0:
            yield f"steps by 0 along axis {axis}"
        elif new != 0 and any(
            _surely(end, -1) or _surely(old - end, 0)
            for end in (part.start, part.start + (new - 1) * part.step)
        ):
            yield f"leaves its operand along axis {axis}"


def _pad(node: Node) -> Problems:
    yield from _view(node)
    x, fill = node.inputs
    low = _integers(node)
    if fill.type != TensorType((), x.type.dtype):
        yield f"fills with {fill.type}"
    if not len(low) == x.type.rank == node.type.rank:
        yield f"{len(low)} paddings for {x.type.rank} axes, result with {node.type.rank}"
        return
    for before, old, new in zip(low, x.shape, node.shape):
        if before < 0 or _surely(new - old - before, -1):
            yield "pads by less than nothing"


def _concat(node: Node) -> Problems:
    if not node.inputs:
        yield "joins nothing"
        return
    yield from _axis(node.attr, node.type.rank)
    axis = node.attr
    assert isinstance(axis, int)
    total: Dim = 0
    for part in node.inputs:
        if part.type.rank != node.type.rank or part.type.dtype is not node.type.dtype:
            yield f"joins {part.type}"
            return
        total = total + part.shape[axis]
        if _without(part.shape, axis) != _without(node.shape, axis):
            yield f"joins {part.type}"
    if total != node.shape[axis]:
        yield f"its parts have {total} elements along axis {axis}"


def _unfold(node: Node) -> Problems:
    yield from _view(node)
    (x,) = node.inputs
    windows = node.attr
    assert isinstance(windows, Windows)
    yield from _axis(windows.axis, x.type.rank)
    if windows.size < 1 or windows.step < 1:
        yield "its windows are empty, or do not move on"
    elif node.shape[-1:] != (windows.size,) or node.type.rank != x.type.rank + 1:
        yield "its last axis are not the elements of a window"
    elif _without(node.shape[:-1], windows.axis) != _without(x.shape, windows.axis):
        yield "its other axes are not those of its operand"
    else:
        last = (node.shape[windows.axis] - 1) * windows.step + windows.size
        if _surely(x.shape[windows.axis] - last, -1):
            yield f"leaves its operand along axis {windows.axis}"


def _without(shape: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _gather(node: Node) -> Problems:
    if not node.inputs:
        yield "has no source"
        return
    yield from _view(node)
    yield from _addresses(node, walked=node.shape, addressed=node.inputs[0].shape)


def _scatter(node: Node) -> Problems:
    if not node.inputs:
        yield "has no value"
        return
    yield from _view(node)
    yield from _addresses(node, walked=node.inputs[0].shape, addressed=node.shape)
    assert isinstance(node.attr, tuple)
    kept = [a.axis for a in node.attr if isinstance(a, Address) and a.axis is not None]
    if len(set(kept)) != len(kept):
        yield "an axis of the value is two of the result"


def _addresses(node: Node, walked: tuple[Dim, ...], addressed: tuple[Dim, ...]) -> Problems:
    """Of a loop over `walked` that reads or writes memory of the shape `addressed`."""
    assert isinstance(node.attr, tuple)
    if len(node.attr) != len(addressed):
        yield f"{len(node.attr)} addresses for {len(addressed)} axes"
        return
    for index in node.inputs[1:]:
        if index.shape != walked or index.type.dtype.kind is not TypeKind.INT:
            yield f"an index operand is {index.type}"
    for address, size in zip(node.attr, addressed):
        assert isinstance(address, Address)
        if (address.axis is None) == (address.operand is None):
            yield "an address has either an axis or an operand"
        elif address.operand is not None and not 0 < address.operand < len(node.inputs):
            yield f"there is no index operand {address.operand}"
        elif address.axis is not None:
            if not 0 <= address.axis < len(walked):
                yield f"there is no axis {address.axis}"
            elif _surely(size - walked[address.axis], -1):
                yield f"axis {address.axis} is longer than what is addressed"


def _reduction(node: Node) -> Problems:
    (x,) = node.inputs
    axes = _integers(node)
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < x.type.rank for axis in axes):
        yield f"{axes} are no sorted axes of {x.type}"
    elif node.shape != tuple(size for axis, size in enumerate(x.shape) if axis not in axes):
        yield "its result lacks other axes than it reduces"


def _scan(node: Node) -> Problems:
    (x,) = node.inputs
    yield from _axis(node.attr, x.type.rank)
    if node.type != x.type:
        yield f"gives {node.type} for {x.type}"


def _dot(node: Node) -> Problems:
    a, b = node.inputs
    if a.type.dtype is not b.type.dtype:
        yield "its operands differ in element type: casts are explicit"
    if node.type.dtype is not a.type.dtype.compute:
        yield "is not of the type that it is added up in"
    if a.type.rank < 2 or a.type.rank != b.type.rank or a.shape[:-2] != b.shape[:-2]:
        yield f"{a.type} and {b.type} are no matrices in equal batches"
    elif a.shape[-1] != b.shape[-2]:
        yield f"{a.shape[-1]} columns meet {b.shape[-2]} rows"
    elif node.shape != (*a.shape[:-1], b.shape[-1]):
        yield "has another shape than its product"
    if isinstance(node.attr, Within) and node.attr.low is node.attr.high:
        yield f"{node.attr.low.value}s are not within themselves"


def _library(node: Node) -> Problems:
    call = node.attr
    assert isinstance(call, LibraryCall)
    yield from _memory(node, call)
    for operand in _operands((call.arguments, tuple(value for _, value in call.keywords))):
        if not 0 <= operand.index < len(node.inputs):
            yield f"there is no operand {operand.index}"


def _structured(node: Node) -> Problems:
    call = node.attr
    assert isinstance(call, StructuredCall)
    yield from _memory(node, call)
    if CALLED[type(call.operation)] is not node.op:
        yield f"asks for {CALLED[type(call.operation)].value}"
        return
    try:
        inferred = result_types(call.operation, [operand.type for operand in node.inputs])
    except ValueError as error:
        yield str(error)
        return
    if len(inferred) != len(call.results):
        yield f"describes {len(call.results)} results of {len(inferred)}"
    for index, (type_, result) in enumerate(zip(inferred, call.results)):
        if (type_ is None) is not (result is None):
            yield f"result {index} is {result and result[0]}, not {type_}"
        elif type_ is not None and result is not None and not _is_alike(type_, result[0]):
            yield f"result {index} is {result[0]}, not {type_}"


def _is_alike(inferred: TensorType, described: TensorType) -> bool:
    """Sizes that only a call knows may be written in two ways."""
    pairs = zip(inferred.shape, described.shape)
    is_shape = inferred.rank == described.rank and not any(
        isinstance(m, int) and isinstance(n, int) and m != n for m, n in pairs
    )
    return is_shape and inferred.dtype is described.dtype


def _memory(node: Node, call: Call) -> Problems:
    if len(call.operand_strides) != len(node.inputs):
        yield f"strides of {len(call.operand_strides)} operands for {len(node.inputs)}"
    for result in call.results:
        if result is not None:
            yield from _strides(result[1], result[0])


def _operands(value: object) -> Iterator[Operand]:
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _operands(item)


def _result(node: Node) -> Problems:
    call, index = node.inputs[0].attr, node.attr
    assert isinstance(index, int)
    if not isinstance(call, Call):
        yield "its operand is no call"
    elif not 0 <= index < len(call.results):
        yield f"the call has {len(call.results)} results"
    else:
        result = call.results[index]
        if result is None or result[0] != node.type:
            yield f"result {index} of the call is {result and result[0]}"


def _integers(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attr, tuple)
    return tuple(value for value in node.attr if isinstance(value, int))


# --- the table


def _no_attr(attr: Attr) -> bool:
    return attr is None


def _is(*types: type) -> Callable[[Attr], bool]:
    return lambda attr: type(attr) in types


def _tuple_of(item: type) -> Callable[[Attr], bool]:
    return lambda attr: isinstance(attr, tuple) and all(type(part) is item for part in attr)


_ANY = frozenset(TypeKind)
_NUMBER = frozenset((TypeKind.INT, TypeKind.FLOAT))
_REDUCTION = _Row(_tuple_of(int), _reduction)

_ROWS: dict[Op, _Row] = {
    Op.INPUT: _Row(_is(InputAttr), _input),
    Op.CONSTANT: _Row(_is(bool, int, float), _constant),
    Op.SIZE: _Row(_is(int, SymbolicDim), _size),
    Op.IOTA: _Row(_is(int), _iota),
    Op.PHILOX: _Row(_no_attr, _philox),
    **{op: _Row(_no_attr, _elementwise, row.kinds) for op, row in ELEMENTWISE.items()},
    Op.CAST: _Row(_no_attr, _cast),
    Op.WHERE: _Row(_no_attr, _where),
    Op.CHECK: _Row(_is(Failure), _check),
    Op.BROADCAST: _Row(_no_attr, _broadcast),
    Op.RESHAPE: _Row(_no_attr, _reshape),
    Op.PERMUTE: _Row(_tuple_of(int), _permute),
    Op.SLICE: _Row(_tuple_of(Range), _slice),
    Op.PAD: _Row(_tuple_of(int), _pad),
    Op.CONCAT: _Row(_is(int), _concat),
    Op.UNFOLD: _Row(_is(Windows), _unfold),
    Op.GATHER: _Row(_tuple_of(Address), _gather),
    Op.SCATTER_ADD: _Row(_tuple_of(Address), _scatter, _NUMBER),
    **dict.fromkeys((Op.SUM, Op.PROD), _Row(_tuple_of(int), _reduction, _NUMBER)),
    **dict.fromkeys((Op.MAX, Op.MIN, Op.ARGMAX, Op.ARGMIN), _REDUCTION),
    **dict.fromkeys(
        (Op.ANY, Op.ALL), _Row(_tuple_of(int), _reduction, frozenset((TypeKind.BOOL,)))
    ),
    **dict.fromkeys(SCANNED, _Row(_is(int), _scan, _NUMBER)),
    Op.DOT: _Row(_is(Within, type(None)), _dot, frozenset((TypeKind.FLOAT,))),
    Op.LIBRARY: _Row(_is(LibraryCall), _library, _ANY),
    **dict.fromkeys(CALLED.values(), _Row(_is(StructuredCall), _structured, _ANY)),
    Op.RESULT: _Row(_is(int), _result, _ANY),
}
