"""A joint graph of AOTAutograd as a question of `fusion/saving`: which values of forward are saved
for backward. The kernels of backward are not planned yet; what no library call separates is taken
to be one, which is what the planner makes of it unless a kernel cannot have it all.

A view is not saved, its base is. Random numbers are made again from their seed.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.frontend.rules import RULES
from hemstitch.fusion.saving.problem import Item, Problem, reached
from hemstitch.ir.ops import OPS

AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
UNIFORM = torch.ops.hemstitch.uniform.default
# What an operation on one element costs, beside bytes moved beyond the caches. A mask of dropout is
# better made again from its seed than written and read as a byte; nearer caches see it otherwise.
BYTES_PER_FLOP = 0.1
FLOPS = {
    **{op.value: row.flops for op, row in OPS.items()},
    **dict.fromkeys(("clone", "view", "reshape"), 0),
    **dict.fromkeys(("_to_copy", "mean", "amax", "amin"), 1),
    **dict.fromkeys(("silu", "silu_backward", "elu", "uniform"), 20),
    **dict.fromkeys(("gelu", "gelu_backward", "softplus", "mish"), 40),
}
OTHER_FLOPS = 2
# Gradients that take the shape of their operation's argument, and nothing else of it.
SHAPE_OF_SECOND = (
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)


@dataclass(frozen=True, slots=True)
class Question:
    """`nodes[k]`: the node of the k-th item."""

    problem: Problem
    nodes: tuple[Node, ...]

    def made_again(self, saved: Set[int]) -> Iterator[Node]:
        """What backward computes that is not saved, and needs no gradient for it."""
        for number in reached(self.problem, self.problem.needed, saved):
            item, node = self.problem.items[number], self.nodes[number]
            if number in saved or item.sources is None:
                continue
            yield node
            if node.target is operator.getitem:
                yield node.all_input_nodes[0]


def question(joint: Graph, results: int, unseen: Collection[int] = ()) -> Question:
    """`results`: how many outputs of the joint graph are forward's; gradients follow. `unseen`:
    those of them that nobody looks at."""
    [outputs] = joint.output_node().args
    assert isinstance(outputs, (tuple, list))
    given = {n: x for n, x in enumerate(outputs[:results]) if isinstance(x, Node)}
    forward = _forward(joint, _needed(given.values()))
    seen = _needed(node for n, node in given.items() if n not in unseen)
    kernel_of = _kernels(joint, forward)
    nodes = tuple(node for node in joint.nodes if node in forward and _is_tensor(node))
    numbers = {node: number for number, node in enumerate(nodes)}
    items = tuple(_item(node, numbers, kernel_of, seen) for node in nodes)
    needs: dict[int, set[int]] = defaultdict(set)
    operands: set[int] = set()
    for node in joint.nodes:
        if node in forward or node.op == "output":
            continue
        used = {numbers[source] for source in _tensors(node) if source in numbers}
        if _is_library(node):
            operands |= {numbers[_base(source)] for source in _tensors(node) if source in numbers}
        elif used:
            needs[kernel_of[node]] |= used
    gradients = [x for x in outputs[results:] if isinstance(x, Node)]
    operands |= {numbers[_base(x)] for x in gradients if x in numbers}
    kernels = tuple(frozenset(needed) for _, needed in sorted(needs.items()))
    return Question(Problem(items, kernels, frozenset(operands)), nodes)


def _needed(results: Iterable[Node]) -> set[Node]:
    """All that these are made of."""
    found, stack = set[Node](), [*results]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _forward(joint: Graph, needed: set[Node]) -> set[Node]:
    """What needs no gradient of a result. `needed`: by forward for its results; what is not is only
    here if it can be computed in a kernel."""
    found: set[Node] = set()
    for node in joint.nodes:
        if node.op == "output" or str(node.target).startswith("tangents"):
            continue
        is_ours = node in needed or node.is_impure() or not _is_library(node)
        if found.issuperset(node.all_input_nodes) and is_ours:
            found.add(node)
    return found


def _kernels(joint: Graph, forward: set[Node]) -> dict[Node, int]:
    """A number for each operation that is generated: equal where no library call stands between
    two that are connected, or read the same value of forward. One pass has other numbers than the
    other."""
    level: dict[Node, int] = {}  # library calls that wait for a kernel, on the way here
    waits: set[Node] = set()  # for some kernel
    parent: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    first: dict[tuple[Node, int], Node] = {}
    for node in joint.nodes:
        inputs = node.all_input_nodes
        level[node] = max((level[x] + (x in waits and _is_library(x)) for x in inputs), default=0)
        if any(x in parent or x in waits for x in inputs):
            waits.add(node)
        if node.op != "call_function" or _is_library(node):
            continue
        parent[node] = node
        is_forward = node in forward
        for source in _tensors(node):
            together = source
            if (source in forward) > is_forward:  # two readers of it can be one kernel
                together = first.setdefault((source, level[node]), node)
            is_one = together in parent and (together in forward) == is_forward
            if is_one and level[together] == level[node]:
                parent[root(node)] = root(together)
    order = {node: number for number, node in enumerate(joint.nodes)}
    return {node: order[root(node)] for node in parent}


def _item(
    node: Node,
    numbers: dict[Node, int],
    kernel_of: dict[Node, int],
    seen: set[Node],
) -> Item:
    size, wish = _bytes(node), node.meta.get("recompute")
    if node.op in ("placeholder", "get_attr"):
        return Item(size, is_given=True, is_written=True, is_saveable=False)
    sources = tuple(numbers[source] for source in _tensors(node) if source in numbers)
    if wish in AGAIN:  # by torch.utils.checkpoint
        return Item(size, sources, is_saveable=False)
    if _is_library(node) or wish is CheckpointPolicy.MUST_SAVE:
        return Item(size, is_written=True)
    if _is_view(node):
        return Item(size, sources, is_saveable=False)
    is_saveable = node in seen and node.target is not UNIFORM
    is_written = _leaves(node, kernel_of[node], kernel_of, seen)
    return Item(size, sources, _work(node), False, is_written, is_saveable)


def _leaves(node: Node, kernel: int, kernel_of: dict[Node, int], seen: set[Node]) -> bool:
    """Whether something else than its kernel reads it, on the way to what is seen of forward."""
    for user in node.users:
        if user.op == "output":
            return node in seen
        if user not in seen:
            continue
        if _is_library(user) or kernel_of[user] != kernel:
            return True
        passes = _is_view(user) or user.target is operator.getitem
        if passes and _leaves(user, kernel, kernel_of, seen):
            return True
    return False


def _work(node: Node) -> float:
    source = node.all_input_nodes[0] if node.target is operator.getitem else node
    elements = max((_elements(x) for x in (node, *_tensors(source))), default=0)
    return BYTES_PER_FLOP * FLOPS.get(_name(source), OTHER_FLOPS) * elements


def _name(node: Node) -> str:
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    return node.target._schema.name.rpartition("::")[2]


def _tensors(node: Node) -> Iterator[Node]:
    """What it reads; of a part of a result of several tensors, what these are made of."""
    if _name(node).endswith("_like") or _name(node).startswith("new_"):  # reads only the shape
        return
    unread = node.args[1] if _name(node) in SHAPE_OF_SECOND else None
    for source in node.all_input_nodes:
        if source is unread:
            continue
        if _is_tensor(source):
            yield source
        elif not _is_library(source):
            yield from _tensors(source)


def _is_library(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_library(node.all_input_nodes[0])
    is_call = node.op == "call_function" and isinstance(_value(node), (Tensor, tuple, list))
    return is_call and node.target not in RULES and node.target is not UNIFORM


def _is_view(node: Node) -> bool:
    is_one = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return is_one or node.target is torch.ops.aten._unsafe_view.default


def _base(node: Node) -> Node:
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_tensor(node: Node) -> bool:
    return isinstance(_value(node), Tensor)


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _bytes(node: Node) -> int:
    return _elements(node) * int(_value(node).element_size())


def _elements(node: Node) -> int:
    """For a symbolic size the one that was traced; no guard comes of asking."""
    count = 1
    for size in _value(node).shape:
        count *= size.node.hint or 1 if isinstance(size, torch.SymInt) else size
    return count
