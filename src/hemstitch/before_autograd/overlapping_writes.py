"""Writes to what has several elements in one place, of which eager's kernels read what they have
just written. AOTAutograd computes with a copy of each element, and says nothing."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from types import EllipsisType, FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from hemstitch.capture.fake_calls import fake_mode
from hemstitch.capture.traced_nodes import are_hinted, hints_of
from hemstitch.errors import UnsupportedError
from hemstitch.ir import layout

IN_PLACE = frozenset(
    getattr(operator, f"i{name}")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
OF_ONE_VALUE = frozenset(("fill_", "zero_", "masked_fill_", "index_fill_"))
# Without another operand: what they have left, they leave again.
IDEMPOTENT = frozenset(
    ("abs_", "relu_", "floor_", "ceil_", "round_", "trunc_", "sign_", "sgn_", "nan_to_num_")
)
# Of these no element is another one.
KEEPING = frozenset(
    (
        *("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"),
        *("detach_", "requires_grad_"),
    )
)
VIEWING = (int, slice, torch.SymInt, NoneType, EllipsisType)  # indices
NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def write_copies(gm: GraphModule) -> None:
    """Change Dynamo's graph: what is copied to such a tensor is no choice between it and others, of
    which only the others would count as written.

    Raises UnsupportedError where a write is neither a copy nor of one value.
    """
    if has_writes_in_turn(gm):
        what = "a write to a tensor that has several elements in one place"
        raise UnsupportedError(what, hint="write to a clone of that tensor")
    copies = [node for node, target in _all_writes(gm) if overlaps(target) and _source(node)]
    for node in copies:
        source = _source(node)
        assert source is not None
        with node.graph.inserting_before(node):
            copy = node.graph.call_method("clone", (source,))
        copy.meta = {**source.meta}
        node.args = (*node.args[:-1], copy)


def has_writes_in_turn(gm: GraphModule) -> bool:
    """And in training any to an argument that overlaps, which AOTAutograd copies without what
    several elements share."""
    values = [_value(node) for node in gm.graph.find_nodes(op="placeholder")]
    arguments = [x for x in values if isinstance(x, Tensor)]
    is_training = any(x.requires_grad for x in arguments)
    copied = [x for x in arguments if is_training and overlaps(x)]
    return any(
        (overlaps(target) and not _is_unread(node, target))
        or any(_is_alias(target, x) for x in copied)
        for node, target in _all_writes(gm)
    )


def _all_writes(gm: GraphModule) -> Iterator[tuple[Node, Tensor]]:
    for module in gm.modules():
        if isinstance(module, GraphModule):
            yield from _writes(module.graph)


def _writes(graph: Graph) -> Iterator[tuple[Node, Tensor]]:
    """Each with what it writes to."""
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or not node.args:
            continue
        target = _value(node.args[0])
        if not isinstance(target, Tensor) or target.layout is not torch.strided:
            continue
        if node.target is operator.setitem:
            yield node, _part(target, node.args[1])
        elif node.target in IN_PLACE or _is_in_place(node):
            yield node, target


def _name(node: Node) -> str:
    """Without the overload."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.partition(".")[0]


def _is_in_place(node: Node) -> bool:
    name = _name(node)
    if name.endswith("_"):
        is_keyword = getattr(node.target, "__module__", "") == "_operator"  # `and_`
        return not (name.endswith("__") or is_keyword or name in KEEPING)
    if not isinstance(node.target, FunctionType):
        return False
    called = inspect.signature(node.target).bind_partial(*node.args, **node.kwargs)
    return called.arguments.get("inplace") is True


def _part(x: Tensor, index: Any) -> Tensor:
    """What a write by `index` has for its target: a view, or `x` itself for what chooses among its
    elements."""
    indices = map_arg(index if isinstance(index, tuple) else (index,), _value)
    if not all(isinstance(place, VIEWING) and not isinstance(place, bool) for place in indices):
        return x
    with fake_mode(x):
        part: Tensor = x[indices]
    return part


def _is_unread(node: Node, target: Tensor) -> bool:
    """Whether nothing that such a write leaves depends on what it leaves elsewhere."""
    operands = [x for x in map(_value, node.all_input_nodes[1:]) if isinstance(x, Tensor)]
    if layout.repeats(*_layout(target)) or any(_is_alias(x, target) for x in operands):
        return False
    if _source(node) is not None:
        return True
    is_number = node.target is operator.setitem and isinstance(_value(node.args[2]), NUMBERS)
    is_idempotent = _name(node) in IDEMPOTENT and len(node.args) == 1 and not node.kwargs
    return is_number or is_idempotent or _name(node) in OF_ONE_VALUE


def _source(node: Node) -> Node | None:
    """Of a copy to all of the target."""
    source = node.args[-1]
    if not isinstance(source, Node) or not isinstance(_value(source), Tensor):
        return None
    if node.target is operator.setitem:
        is_copy = _part(_value(node.args[0]), node.args[1]) is not _value(node.args[0])
    else:
        is_copy = _name(node) == "copy_"
    return source if is_copy else None


def _is_alias(x: Tensor, y: Tensor) -> bool:
    is_alias: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
    return x.layout is torch.strided and bool(is_alias(x, y))


def overlaps(x: Tensor) -> bool:
    """At the example sizes."""
    if x.layout is not torch.strided or not are_hinted((*x.shape, *x.stride())):
        return False
    return layout.overlaps(*_layout(x), {}) is True


def _layout(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(hints_of(x.shape)), tuple(hints_of(x.stride()))


def _value(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument
