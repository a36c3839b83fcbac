"""`as_strided` speaks of the memory that a tensor is in, not of the tensor: of the slice of an
intermediate it sees what lies between, in front and behind. So it is called with what the slice was
taken of, all of which is in memory, and its offset counts from where that begins, wherever that
is."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hemstitch.capture.fake_calls import call_before
from hemstitch.capture.result_aliasing import is_dense, views_of
from hemstitch.capture.symbolic_sizes import Sizes
from hemstitch.capture.traced_nodes import is_given, is_view, name_of, value_of
from hemstitch.ir import layout

aten = torch.ops.aten
SEEN = "hemstitch::as_strided_from"
SCATTERED = "hemstitch::as_strided_scatter_from"
REPLACED = "hemstitch::as_strided_scatter_from_"
WRITTEN = "hemstitch::as_strided_written_from"
Numbers = Sequence[int]

torch.library.define(
    SEEN, "(Tensor(a) x, SymInt[] size, SymInt[] stride, SymInt distance) -> Tensor(a)"
)
torch.library.define(
    REPLACED,
    "(Tensor(a!) x, Tensor source, SymInt[] size, SymInt[] stride, SymInt distance) -> Tensor(a!)",
)
torch.library.define(
    SCATTERED,
    "(Tensor x, Tensor source, SymInt[] size, SymInt[] stride, SymInt distance) -> Tensor",
)
torch.library.define(
    WRITTEN,
    "(Tensor x, Tensor source, Tensor is_new, SymInt[] size, SymInt[] stride, SymInt distance, *,"
    " bool is_place=False) -> Tensor",
)


@torch.library.impl(SEEN, "CompositeExplicitAutograd")
def _seen(x: Tensor, size: Numbers, stride: Numbers, distance: int) -> Tensor:
    return x.as_strided(size, stride, x.storage_offset() + distance)


@torch.library.impl(SCATTERED, "CompositeExplicitAutograd")
def _scattered(x: Tensor, source: Tensor, size: Numbers, stride: Numbers, distance: int) -> Tensor:
    """Without the rest of the memory that `x` is in."""
    fresh = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    fresh.as_strided(size, stride, distance).copy_(source)
    return fresh


@torch.library.impl(REPLACED, "CompositeExplicitAutograd")
def _replaced(x: Tensor, source: Tensor, size: Numbers, stride: Numbers, distance: int) -> Tensor:
    x.as_strided(size, stride, x.storage_offset() + distance).copy_(source)
    return x


@torch.library.impl(WRITTEN, "CompositeExplicitAutograd")
def _written(
    x: Tensor,
    source: Tensor,
    is_new: Tensor,
    size: Numbers,
    stride: Numbers,
    distance: int,
    *,
    is_place: bool = False,
) -> Tensor:
    """`source`: all of that view, with what a program has written to a part of it, `is_new`. Where
    several of its elements lie in one place, that holds one that was written. `is_place`: what
    is no distance but a place in memory."""
    distance -= int(x.storage_offset()) if is_place else 0
    fresh = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
    fresh.as_strided(size, stride, distance).copy_(source)
    memory = fresh.as_strided((fresh.untyped_storage().nbytes() // fresh.itemsize,), (1,))
    holds_new = torch.zeros_like(memory, dtype=torch.bool)
    holds_new.as_strided(size, stride, distance).copy_(is_new)
    is_lost = is_new & ~holds_new.as_strided(size, stride, distance)
    places = torch.arange(len(memory), device=x.device).as_strided(size, stride, distance)
    memory[places[is_lost]] = source[is_lost]
    return fresh


@torch.library.impl(WRITTEN, "Meta")
def _written_as_traced(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


FROM = {
    aten.as_strided.default: torch.ops.hemstitch.as_strided_from.default,
    aten.as_strided_scatter.default: torch.ops.hemstitch.as_strided_scatter_from.default,
}
# Of two tensors, the first of which they replace by the second in part.
REPLACING = frozenset(("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"))
# By one value, which is the argument of that number, where an index or a mask says so.
FILLING = {"index_put": 2, "_unsafe_index_put": 2, "index_fill": 3, "masked_fill": 2}
WRITTEN_FROM = torch.ops.hemstitch.as_strided_written_from.default
VIEWS = (aten.as_strided.default, FROM[aten.as_strided.default])


def resolve_as_strided(graph: Graph) -> None:
    """Change `graph`, as AOTAutograd traced it: the sources and offsets of such calls."""
    for node in graph.find_nodes(op="call_function", target=aten.as_strided_copy.default):
        view = call_before(node, aten.as_strided.default, *node.args, **node.kwargs)
        node.target, node.args = aten.clone.default, (view,)
        node.kwargs = {"memory_format": torch.contiguous_format}
    for target in FROM:
        for node in graph.find_nodes(op="call_function", target=target):
            _from_base(node)


def is_in_memory(node: Node, sizes: Sizes) -> bool:
    """Whether what such a call looks at is in memory as it was traced: an argument, or what has
    neither gaps nor repetitions."""
    source = node.args[0]
    assert isinstance(source, Node)
    if node.target in FROM:  # backward finds elsewhere what forward has made
        is_saved = not str(source.target).startswith(("arg", "primals", "tangents"))
        return source.op == "get_attr" or (source.op == "placeholder" and not is_saved)
    return is_given(source) or is_dense(source, sizes)


def _from_base(node: Node) -> None:
    source, size, stride, offset = _arguments(node)
    *views, base = views_of(source)
    is_new = _what_is_new(node, base)
    if is_given(base) and offset is None and source is base and is_new is None:
        return  # wherever a call finds it
    target: Any = node.target
    start: Any = _offset(node, source) if offset is None else offset
    is_place = is_given(base) and offset is not None  # wherever a call finds the argument
    if not is_place or is_new is not None:
        target = FROM[target] if is_new is None else WRITTEN_FROM
    distance = start if target is node.target else _difference(node, start, _offset(node, base))
    written = node.args[1:2] if node.target is aten.as_strided_scatter.default else ()
    written += () if is_new is None else (is_new,)
    if written and target is not node.target and not _is_inside(base, size, stride, distance):
        return  # declined
    keywords = {"is_place": True} if is_place and is_new is not None else {}
    where = start if is_place else distance
    call = call_before(node, target, base, *written, size, stride, where, **keywords)
    if written:
        call = _seen_through(call, views, base)
    call.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


def _offset(at: Node, source: Node) -> int | Node:
    """Where `source` begins; a call before `at` asks for it where only the call knows."""
    offset = value_of(source).storage_offset()
    is_known = isinstance(offset, int)
    return int(offset) if is_known else call_before(at, aten.sym_storage_offset.default, source)


def _difference(at: Node, x: int | Node, y: int | Node) -> int | Node:
    if isinstance(x, int) and isinstance(y, int):
        return x - y
    return x if y == 0 else call_before(at, operator.sub, x, y)


def _what_is_new(node: Node, base: Node) -> Node | None:
    """Which elements of its source `node` writes, if it is what AOTAutograd makes of a write to a
    part of a view of `base`, whose elements may lie in one place: it reads all of the view,
    replaces the part, writes all of it."""
    if node.target is not aten.as_strided_scatter.default or not _may_overlap(node):
        return None
    stack, known = [node.args[1]], set[Any]()
    while stack:
        source = stack.pop()
        if not isinstance(source, Node) or source in known or source is base:
            continue
        known.add(source)
        if _is_seen(source, base):
            return _new_elements(node.args[1], base, node)
        if is_view(source) or name_of(source) in (*REPLACING, *FILLING, "where"):
            stack.extend(source.all_input_nodes)
    return None


def _is_seen(node: Node, base: Node) -> bool:
    return node.target in VIEWS and [*views_of(node)][-1] is base


def _new_elements(node: Any, base: Node, at: Node) -> Node:
    """Of `node`: those that are not of the view of `base`, nor of a view of that."""
    name = name_of(node)
    first, *others = node.args or (None,)
    arguments: list[Any] | None = None
    if is_view(node) and not _is_seen(node, base):
        arguments = [_new_elements(first, base, at), *others]
    elif name in REPLACING:
        arguments = [_new_elements(first, base, at), _new_elements(others[0], base, at)]
        arguments += others[1:]
    elif name == "where" and all(isinstance(source, Node) for source in others):
        arguments = [first, *(_new_elements(source, base, at) for source in others)]
    elif name in FILLING and node.args[3:] != (True,):
        arguments = [_new_elements(first, base, at), *others]
        value = arguments[FILLING[name]]
        is_tensor = isinstance(value, Node) and isinstance(value_of(value), Tensor)
        arguments[FILLING[name]] = _filled(value, True, at) if is_tensor else True
    if arguments is None:
        return _filled(node, not _is_seen(node, base), at)
    return call_before(at, node.target, *arguments, **node.kwargs)


def _filled(like: Node, value: bool, at: Node) -> Node:
    return call_before(at, aten.full_like.default, like, value, dtype=torch.bool)


def _may_overlap(node: Node) -> bool:
    _, size, stride, _ = _arguments(node)
    is_known = all(isinstance(number, int) for number in (*size, *stride))
    return not is_known or layout.overlaps(tuple(size), tuple(stride), {}) is not False


def _is_inside(base: Node, size: Numbers, stride: Numbers, distance: int | Node) -> bool:
    """Whether all places are among the elements of `base`, if these lie side by side: with the
    sizes that were traced. With others the call itself raises an error where one is not."""
    numbers = [_hint(number) for number in (*size, *stride, distance, value_of(base).numel())]
    if any(number is None for number in numbers):
        return False
    *steps, first, elements = numbers
    last = first + sum((n - 1) * step for n, step in zip(steps, steps[len(size) :]))
    return bool(first >= 0 and last < elements)


def _hint(number: Any) -> Any:
    traced = value_of(number) if isinstance(number, Node) else number
    return traced.node.hint if isinstance(traced, torch.SymInt) else traced


def _arguments(node: Node) -> tuple[Node, Any, Any, Any]:
    """Of a call: what it looks at, sizes, strides and offset."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    known = {**dict(zip(names, node.args)), **node.kwargs}
    offset = known.get("storage_offset")
    return known["self"], known["size"], known["stride"], offset


def _seen_through(new: Node, views: Sequence[Node], base: Node) -> Node:
    """`new` through the same views as `base`, the last of them first."""
    copies: dict[Node, Node] = {base: new}
    for view in reversed(views):
        call: Any = view.args[0] if view.target is operator.getitem else view
        for node in dict.fromkeys((call, view)):
            with new.graph.inserting_before(new.next):
                copies[node] = new.graph.node_copy(node, lambda x: copies.get(x, x))
            new = copies[node]
    return new
