"""Which values must be in memory whatever the plan, and in what layout: results, mutated inputs and
operands of library calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.errors import UnsupportedError
from hemstitch.ir.dims import Dim, evaluate, product, symbols
from hemstitch.ir.graph import (
    Graph,
    InputAttr,
    LibraryCall,
    Node,
    Op,
    Operand,
    Output,
    result_strides,
    toposort,
)
from hemstitch.ir.ops import is_view
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.stitch.group import MOST_CONCAT_PARTS, Tensor, Write, is_member
from hemstitch.stitch.views import INVERTIBLE, is_even, strided, strides_below


@dataclass(frozen=True, slots=True, eq=False)
class Alias:
    """A library operand: strides and offset over a tensor in memory."""

    tensor: Tensor
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim

    @property
    def is_whole(self) -> bool:
        """It is the tensor itself."""
        return self.shows_as(Alias(self.tensor, self.tensor.node.shape, self.tensor.strides, 0))

    def shows_as(self, other: Alias) -> bool:
        """Both look at the same memory in the same way."""
        same = (self.tensor, self.shape, self.offset) == (other.tensor, other.shape, other.offset)
        return same and agree(self.shape, self.strides, other.strides)


@dataclass(slots=True)
class Demands:
    """`tensors`: every node in memory, views among them where nothing else will do.
    `writes`: what kernels must store there that is not simply a member's own value.
    `operands`: for each library node, where each input is read.
    `outputs`: for each graph output, where the caller finds it.
    `views`: views that writes fill; library calls and outputs may read there, kernels do not.
    `in_place`: results of library calls that these write over an argument of the graph.
    `obstacles`: reshapes that readers are known not to look through.
    `hints`: the graph's."""

    tensors: dict[Node, Tensor] = field(default_factory=dict)
    views: dict[Node, Tensor] = field(default_factory=dict)
    in_place: set[Node] = field(default_factory=set)
    writes: list[Write] = field(default_factory=list)
    operands: dict[Node, tuple[Alias, ...]] = field(default_factory=dict)
    outputs: dict[int, Alias] = field(default_factory=dict)
    obstacles: frozenset[Node] = frozenset()
    hints: Mapping[str, int] = field(default_factory=dict)

    def keep(self, alias: Alias) -> None:
        """What `alias` looks at will be in memory."""
        if alias.tensor.node not in self.views:
            self.tensors.setdefault(alias.tensor.node, alias.tensor)

    def write(self, value: Node, tensor: Tensor) -> Tensor:
        """Have `value` stored in `tensor`; each part of a concatenation for itself."""
        if is_view(value.op):
            self.views.setdefault(value, tensor)
        start: Dim = 0
        parts = [(value, tensor.strides, start)]
        while parts:
            part, strides, offset = parts.pop()
            whole = self._concatenation(part, strides, part is value)
            if whole is None:
                self.writes.append(Write(part, tensor, strides, offset))
                continue
            found, strides = whole
            axis = found.attr
            assert isinstance(axis, int)
            for piece in found.inputs:
                parts.append((piece, strides, offset))
                offset = offset + piece.shape[axis] * strides[axis]
        return tensor

    def _concatenation(
        self, part: Node, strides: tuple[Dim, ...], is_whole: bool
    ) -> tuple[Node, tuple[Dim, ...]] | None:
        """What `part`, written with these strides, shows, and the strides of that; None if it is no
        concatenation, or if that is in memory already."""
        node = part
        while node.op in INVERTIBLE and (node is part or node not in self.tensors):
            below = strides_below(node, strides)
            if below is None:
                return None
            (node,), strides = node.inputs, below
        is_new = node not in self.tensors or (is_whole and node is part)
        return (node, strides) if node.op is Op.CONCAT and is_new else None


def demands(graph: Graph, obstacles: frozenset[Node] = frozenset()) -> Demands:
    """`obstacles`: as in `Demands`."""
    found = Demands(obstacles=obstacles, hints=graph.hints)
    nodes = toposort(graph.roots)
    for node, strides in strides_in_memory(graph).items():
        found.tensors[node] = Tensor(node, strides)
    for result, argument in _in_place(graph, nodes):
        found.tensors[result] = found.tensors[argument]
        found.in_place.add(result)
    for node in nodes:
        if node.op is Op.RESHAPE or node.op is Op.CONCAT:
            _materialise_obstacles(found, node, node in obstacles)
    _demand_outputs(found, graph)
    for node in nodes:
        if node.op is Op.LIBRARY:
            call = node.attr
            assert isinstance(call, LibraryCall)
            found.operands[node] = tuple(
                _operand(found, value, strides)
                for value, strides in zip(node.inputs, call.operand_strides)
            )
    _demand_shared(found, graph)
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
    where it reads, if it is the only one to read the old contents, and laid out alike."""
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
        laid_out = (result_strides(result), strides[0] if strides else None)
        if (
            call.in_place is not None
            and is_alone
            and result.inputs[0].inputs[0] is argument
            and result.type == argument.type
            and all(other is not None and agree(result.shape, own, other) for other in laid_out)
        ):
            yield result, argument


def _demand_outputs(found: Demands, graph: Graph) -> None:
    """Results that are the caller's alone, and mutated inputs."""
    taken: set[Tensor] = set()
    changed = {output.mutates for output in graph.outputs}
    for number, output in enumerate(graph.outputs):
        if output.mutates is not None:
            tensor = found.tensors[output.mutates]
            if found.tensors.get(output.value) is not tensor:
                # Not in parts, as `write` would: one part may read what another replaces.
                found.writes.append(Write(output.value, tensor, tensor.strides))
            found.outputs[number] = Alias(tensor, tensor.node.shape, tensor.strides, 0)
        elif not output.may_share:
            expanded = _expanded(found, output, changed, taken)
            found.outputs[number] = expanded or _output(found, output.value, output.strides, taken)


def _expanded(
    found: Demands, output: Output, changed: set[Node | None], taken: set[Tensor]
) -> Alias | None:
    """Where eager gives one element under many indices (an expanded gradient), so do we: of a copy
    if those elements are an argument or a result already, with which it shares nothing in eager."""
    if not _repeats(output.value.shape, output.strides):
        return None
    alias = _alias(found.tensors, output.value)
    if alias is None or not agree(output.value.shape, alias.strides, output.strides):
        return _repeated(found, output, taken)
    if alias.tensor.node in changed:
        return None
    tensor = alias.tensor
    if tensor in taken or tensor.is_argument:
        tensor = found.write(tensor.node, _another(found, tensor.node, tensor.strides))
    else:
        found.keep(alias)
    taken.add(tensor)
    return replace(alias, tensor=tensor)


def _repeats(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    return any(size != 1 and step == 0 for size, step in zip(shape, strides))


def _repeated(found: Demands, output: Output, taken: set[Tensor]) -> Alias | None:
    """What it repeats in memory of its own, if it is laid out as those elements are."""
    value, strides = output.value, output.strides
    orders: list[tuple[int, ...]] = []
    while value.op is Op.PERMUTE:
        below = strides_below(value, strides)
        assert below is not None
        orders.append(value.attr)  # type: ignore[arg-type]
        (value,), strides = value.inputs, below
    if value.op is not Op.BROADCAST:
        return None
    (source,) = value.inputs
    is_again = [size != wide for size, wide in zip(source.shape, value.shape)]
    axes = zip(value.shape, strides, is_again)
    if any((step == 0) != again for size, step, again in axes if size != 1):
        return None
    once = tuple(1 if again else step for step, again in zip(strides, is_again))
    alias = _output(found, source, once, taken, output.may_share)
    steps = tuple(0 if again else step for step, again in zip(alias.strides, is_again))
    for order in reversed(orders):
        steps = tuple(steps[axis] for axis in order)
    return Alias(alias.tensor, output.value.shape, steps, alias.offset)


def _demand_shared(found: Demands, graph: Graph) -> None:
    """Results kept for backward: views of what is in memory anyway, where their strides agree; and
    a result of the user's itself, whose version counter tells autograd if it is written to."""
    own = {alias.tensor: alias for alias in found.outputs.values()}
    taken = set(own)
    changed = {output.mutates for output in graph.outputs}
    for number, output in enumerate(graph.outputs):
        if number in found.outputs:
            continue
        alias = _alias({**found.views, **found.tensors}, output.value)
        if (
            alias is not None
            and (alias.tensor not in own or alias.shows_as(own[alias.tensor]))
            and alias.tensor.node not in changed
            and agree(output.value.shape, alias.strides, output.strides)
        ):
            found.keep(alias)
            found.outputs[number] = alias
        elif made := _copy(found, output.value, output.strides, own):
            found.outputs[number] = Alias(made, output.value.shape, output.strides, 0)
        else:
            found.outputs[number] = _kept(found, output, taken)


def _kept(found: Demands, output: Output, taken: set[Tensor]) -> Alias:
    """Raises UnsupportedError where it would not be laid out as backward reads it."""
    value, strides = output.value, output.strides
    alias = _expanded(found, output, set(), taken) or _output(found, value, strides, taken, True)
    if value.type.dtype is not DType.OPAQUE and not agree(value.shape, alias.strides, strides):
        raise UnsupportedError(f"{value.type}, kept for backward with the strides {strides}")
    return alias


def _materialise_obstacles(found: Demands, node: Node, is_obstacle: bool) -> None:
    """Views that no loop of a reader can look through get memory of their own: concatenations of
    many parts, and what is below a reshape that cuts axes unevenly."""
    if node.op is Op.CONCAT and len(node.inputs) > MOST_CONCAT_PARTS:
        tensor = found.tensors[node] = Tensor(node, contiguous_strides(node.shape))
        found.write(node, tensor)
    elif node.op is Op.RESHAPE and (is_obstacle or not is_even(node.inputs[0].shape, node.shape)):
        (source,) = node.inputs
        known = found.tensors.get(source)
        contiguous = contiguous_strides(source.shape)
        if known is None:
            tensor = found.tensors[source] = Tensor(source, contiguous)
            if not is_member(source):
                found.write(source, tensor)
        elif not agree(source.shape, known.strides, contiguous):
            tensor = found.tensors[node] = Tensor(node, contiguous_strides(node.shape))
            found.writes.append(Write(source, tensor, contiguous))


def _output(
    found: Demands,
    value: Node,
    strides: tuple[Dim, ...],
    taken: set[Tensor],
    is_exact: bool = False,
) -> Alias:
    """A tensor of its own for every result: the caller may write to one and keep the others.
    `is_exact`: with these strides, which a compiled backward relies on, though elements be far
    apart, as those of one row in each sequence are; eager keeps all that lies between."""
    if value.type.dtype is DType.OPAQUE:
        return _uncopied(found, value)
    alias = _alias(found.tensors, value)
    is_free = alias is not None and _is_ours(found, alias) and alias.tensor not in taken
    if alias is not None and is_free and agree(value.shape, alias.strides, strides):
        taken.add(alias.tensor)
        return alias
    if not is_exact or _repeats(value.shape, strides):
        strides = _storable(found, value.shape, strides)
    seen, below = _seen(found, value, strides)
    if is_member(seen) and seen not in found.tensors:
        tensor = found.tensors[seen] = Tensor(seen, below)
    else:
        tensor = found.write(value, _another(found, value, strides))
    taken.add(tensor)
    return Alias(tensor, value.shape, strides, 0)


def _is_ours(found: Demands, alias: Alias) -> bool:
    """A library call or kernels make it, and nothing beside it."""
    tensor = alias.tensor
    is_made = found.tensors.get(tensor.node) is tensor and not tensor.is_argument
    is_whole = product(alias.shape) == product(tensor.node.shape)
    return not _shows_argument(found, tensor) if tensor.is_result else is_made and is_whole


def _shows_argument(found: Demands, result: Tensor) -> bool:
    """Whether a library call made it as a view of an argument."""
    [call] = result.node.inputs
    if not isinstance(call.attr, LibraryCall) or not call.attr.holds_operands:
        return False
    seen = [alias.tensor for value in call.inputs if (alias := _alias(found.tensors, value))]
    return any(x.is_argument or (x.is_result and _shows_argument(found, x)) for x in seen)


def _seen(found: Demands, value: Node, strides: tuple[Dim, ...]) -> tuple[Node, tuple[Dim, ...]]:
    """What a result is a view of, element by element, and the strides of that: in memory so, all
    others read it there as well."""
    while value.op in INVERTIBLE and value not in found.obstacles:
        below = strides_below(value, strides)
        if below is None or value.inputs[0] in found.tensors:
            break
        (value,), strides = value.inputs, below
    return value, strides


def _operand(found: Demands, value: Node, strides: tuple[Dim, ...] | None) -> Alias:
    """An alias of what is in memory where its strides are as traced, else a tensor of its own."""
    if value.type.dtype is DType.OPAQUE:
        return _uncopied(found, value)
    wanted = contiguous_strides(value.shape) if strides is None else strides
    alias = _alias({**found.views, **found.tensors}, value)
    if alias is not None and (strides is None or agree(value.shape, alias.strides, wanted)):
        found.keep(alias)
        return alias
    wanted = _storable(found, value.shape, wanted)
    if is_member(value) and value not in found.tensors:
        tensor = found.tensors[value] = Tensor(value, wanted)
    else:
        made = _copy(found, value, wanted)
        tensor = made or found.write(value, _another(found, value, wanted))
    return Alias(tensor, value.shape, wanted, 0)


def _copy(
    found: Demands, value: Node, strides: tuple[Dim, ...], private: Container[Tensor] = ()
) -> Tensor | None:
    """One of `value` with these strides that is made already, but none of `private`."""
    copies = (w.tensor for w in found.writes if w.tensor.node is value and w.strides == strides)
    return next((tensor for tensor in copies if tensor not in private), None)


def _uncopied(found: Demands, value: Node) -> Alias:
    """Itself: no kernel can copy a type that only library calls touch."""
    tensor = found.tensors[value]
    return Alias(tensor, value.shape, tensor.strides, 0)


def _alias(tensors: Mapping[Node, Tensor], value: Node) -> Alias | None:
    """`value` as strides over something that is in memory, or will be for its sake."""
    known = {node: tensor.strides for node, tensor in tensors.items()}
    found = strided(value, known)
    if found is None:
        return None
    base, strides, offset = found
    if base in tensors:
        return Alias(tensors[base], value.shape, strides, offset)
    if not is_member(base) or base is value:
        return None
    return Alias(Tensor(base, contiguous_strides(base.shape)), value.shape, strides, offset)


def _another(found: Demands, value: Node, strides: tuple[Dim, ...]) -> Tensor:
    return Tensor(value, strides, is_copy=value in found.tensors)


def agree(shape: tuple[Dim, ...], a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Equal strides wherever they matter."""
    return product(shape) == 0 or all(size == 1 or x == y for size, x, y in zip(shape, a, b))


def _storable(found: Demands, shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """`strides` if elements lie side by side in some order, else without what is between them, in
    the order that they are in."""
    left = [(size, step) for size, step in zip(shape, strides) if size != 1]
    extent: Dim = 1
    while left:
        inner = next((axis for axis in left if axis[1] == extent), None)
        if inner is None:
            return _closed(shape, strides, found.hints)
        left.remove(inner)
        extent = extent * inner[0]
    return strides


def _closed(
    shape: tuple[Dim, ...], strides: tuple[Dim, ...], hints: Mapping[str, int]
) -> tuple[Dim, ...]:
    """In the order that they have at the example sizes; contiguous where one element is under many
    indices."""
    is_known = all(symbols(step) <= hints.keys() for step in strides)
    steps = [evaluate(step, hints) for step in strides] if is_known else []
    if product(shape) == 0 or not steps or min(steps) == 0:
        return contiguous_strides(shape)
    found: dict[int, Dim] = {}
    extent: Dim = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (steps[axis], -axis)):
        found[axis] = extent
        extent = extent * shape[axis]
    return tuple(found[axis] for axis in range(len(shape)))
