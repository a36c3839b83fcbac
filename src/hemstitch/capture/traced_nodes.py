"""What there is to know of a node of AOTAutograd's joint graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._functorch.partitioners import _must_be_in_backward
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.capture.rules import RULES
from hemstitch.errors import UnsupportedError

AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
# Gradients that take the shape of their operation's argument, and nothing else of it.
SHAPE_OF_SECOND = (
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)

# Sums by index: whoever adds them up, they are in memory before anything reads them.
IN_MEMORY = frozenset(
    ("embedding_dense_backward", "index_add", "index_put", "_unsafe_index_put", "scatter_add")
)

MOVES = ("resize_storage_bytes_", "resize_", "set_")


def refuse_moves(node: Node) -> None:
    """Arguments may have no memory before these, nor behind: nothing that reads them is moved."""
    if name_of(node) in MOVES:
        raise UnsupportedError("the memory of a tensor is taken or given back within the graph")


def outputs_of(joint: Graph) -> list[Any]:
    """Results of forward, then gradients."""
    [outputs] = joint.output_node().args
    assert isinstance(outputs, (tuple, list))
    return [*outputs]


def without_tangent(joint: Graph) -> set[Node]:
    """All that forward could compute: what needs no gradient of a result."""
    forward: set[Node] = set()
    for node in joint.nodes:
        is_late = str(node.target).startswith("tangents") or _must_be_in_backward(node)
        if node.op != "output" and not is_late and forward.issuperset(node.all_input_nodes):
            forward.add(node)
    return forward


def is_recomputed(node: Node) -> bool:
    """By torch.utils.checkpoint."""
    return node.meta.get("recompute") in AGAIN


def is_given(node: Node) -> bool:
    return node.op in ("placeholder", "get_attr")


def is_copy(node: Node) -> bool:
    """Of an argument."""
    is_clone = node.target is torch.ops.aten.clone.default
    return is_clone and node.all_input_nodes[0].op == "placeholder"


COPIED = "hemstitch_copied"  # of a copy that stands for an argument: it was not the program's


def copy_of_written(argument: Node) -> Node | None:
    """Of an argument that the caller writes to when forward is over: AOTAutograd traces all that
    reads it with a copy. (A program's own copy, if all of it reads that, looks no different.)"""
    readers = [user for user in argument.users if isinstance(user.meta.get("val"), torch.Tensor)]
    is_one = len(readers) == 1 and is_copy(readers[0]) and not readers[0].kwargs
    return readers[0] if is_one else None


def is_tensor(node: Node) -> bool:
    return isinstance(value_of(node), Tensor)


def is_view(node: Node) -> bool:
    """Of another value: the conjugate of a Python number, which PyTorch traces too, is none. What
    `reshape` copied is seen by one that is none to autograd (`_unsafe_view`)."""
    is_one = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    is_view = is_one or node.target is torch.ops.aten._unsafe_view.default
    return is_view and bool(node.all_input_nodes)


def base_of(node: Node) -> Node:
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def is_library(node: Node) -> bool:
    """Whether it is a library call, or a part of what one gives; or is like one, as no kernel that
    reads it can make it."""
    if node.target is operator.getitem:
        return is_library(node.all_input_nodes[0])
    is_call = node.op == "call_function" and isinstance(value_of(node), (Tensor, tuple, list))
    return is_call and (node.target not in RULES or name_of(node) in IN_MEMORY)


def tensors_of(node: Node) -> Iterator[Node]:
    """What it reads; of a part of a result of several tensors, what these are made of."""
    if name_of(node).endswith("_like") or name_of(node).startswith("new_"):  # reads only the shape
        return
    unread = node.args[1] if name_of(node) in SHAPE_OF_SECOND else None
    for source in node.all_input_nodes:
        if source is unread:
            continue
        if is_tensor(source):
            yield source
        elif not is_library(source):
            yield from tensors_of(source)


def name_of(node: Node) -> str:
    """An operation's, without its namespace."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    return node.target._schema.name.rpartition("::")[2]


def arguments_of(node: Node) -> tuple[Any, ...]:
    """Of one whose operation says what they are."""
    return node.args


def value_of(node: Node) -> Any:
    return node.meta.get("val")


def formulas(sizes: Iterable[int | torch.SymInt]) -> tuple[object, ...]:
    """Sizes as what can be compared, and hashed, without a guard: a symbolic one as its formula."""
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


def are_hinted(sizes: Iterable[int | torch.SymInt]) -> bool:
    """None of them is read from data."""
    return all(isinstance(size, int) or size.node.hint is not None for size in sizes)


def hints_of(sizes: Iterable[int | torch.SymInt]) -> list[int]:
    """Sizes as traced; no guard comes of asking."""
    return [size if isinstance(size, int) else int(size.node.hint) for size in sizes]


def bytes_of(node: Node) -> int:
    return elements_of(node) * int(value_of(node).element_size())


def elements_of(node: Node) -> int:
    """For a symbolic size the one that was traced; no guard comes of asking."""
    count = 1
    for size in value_of(node).shape:
        count *= size.node.hint or 1 if isinstance(size, torch.SymInt) else size
    return count
