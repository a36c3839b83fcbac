"""A joint graph of AOTAutograd as a question of `planning/saving`: which values of forward are
saved for backward. The kernels of backward are not planned yet; what no library call separates is
taken to be one, which is what the planner makes of it unless a kernel cannot have it all.

A view is not saved, its base is. Random numbers are made again from their seed. What forward does
not need, but could compute for backward, may be saved too (`saved_masks.py`). The program may write
to arguments and results: of these what no operation of backward reads is not saved, as autograd
would not; at most a copy of an argument is.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.capture.effects import has_effects
from hemstitch.capture.traced_nodes import (
    base_of,
    bytes_of,
    is_given,
    is_library,
    is_recomputed,
    is_tensor,
    is_view,
    outputs_of,
    tensors_of,
    without_tangent,
)
from hemstitch.joint import saved_masks
from hemstitch.joint.recompute_cost import effort_of
from hemstitch.planning.saving.saving_problem import Decision, SavedValue, SavingProblem

UNIFORM = torch.ops.hemstitch.uniform.default


@dataclass(frozen=True, slots=True)
class Question:
    """`nodes[k]`: the node of the k-th item; all are forward's. `kernel_of`: what is generated, by
    the number of its kernel; `kernels[k]`: the number of the k-th that needs something. `seen`:
    what results of forward are made of. `unread`: what is saved as a copy, if at all."""

    problem: SavingProblem
    nodes: tuple[Node, ...]
    kernel_of: Mapping[Node, int]
    kernels: tuple[int, ...]
    seen: frozenset[Node]
    unread: frozenset[Node]

    def copied(self, decision: Decision) -> frozenset[Node]:
        return self.unread.intersection(self.nodes[number] for number in decision.saved)

    def saved(self, decision: Decision) -> set[Node]:
        """What backward does not compute again if it comes upon it: some are read by operations
        that look at nothing but their shape."""
        fixed = (n for n, item in enumerate(self.problem.items) if item.sources is None)
        return {self.nodes[number] for number in (*decision.saved, *fixed)}


def question(
    joint: Graph, results: int, unseen: Collection[int] = (), written: Collection[Node] = ()
) -> Question:
    """`results`: how many outputs of the joint graph are forward's; gradients follow. `unseen`:
    those of them that nobody looks at. `written`: what the program may write to before backward."""
    outputs = outputs_of(joint)
    results_of_forward = {n: x for n, x in enumerate(outputs[:results]) if isinstance(x, Node)}
    forward = _forward(joint, _needed(results_of_forward.values()))
    seen = _with_others(_needed(node for n, node in results_of_forward.items() if n not in unseen))
    kernel_of = _kernels(joint, forward)
    nodes = tuple(node for node in joint.nodes if node in forward and is_tensor(node))
    numbers = {node: number for number, node in enumerate(nodes)}
    costs = saved_masks.costs(nodes, seen, kernel_of)
    gradients = [x for x in outputs[results:] if isinstance(x, Node)]
    unread = frozenset(written) - _read_outside(seen, joint, gradients)
    items = tuple(_item(node, numbers, kernel_of, seen, costs, unread) for node in nodes)
    needs: dict[int, set[int]] = defaultdict(set)
    operands: set[int] = set()
    for node in joint.nodes:
        if node in forward or node.op == "output":
            continue
        used = {numbers[source] for source in tensors_of(node) if source in numbers}
        if is_library(node):
            operands |= {
                numbers[base_of(source)] for source in tensors_of(node) if source in numbers
            }
        elif used:
            needs[kernel_of[node]] |= used
    operands |= {numbers[base_of(x)] for x in gradients if x in numbers}
    kernels = tuple(sorted(needs))
    needed = tuple(frozenset(needs[kernel]) for kernel in kernels)
    problem = SavingProblem(items, needed, frozenset(operands))
    return Question(problem, nodes, kernel_of, kernels, frozenset(seen), unread)


def read_by_backward(joint: Graph, results: int) -> set[Node]:
    """What autograd saves of forward, as long as the graph is as it was traced. (One operation may
    take the place of two later on, one of each pass.)"""
    outputs = outputs_of(joint)
    forward_results, gradients = (
        [x for x in part if isinstance(x, Node)] for part in (outputs[:results], outputs[results:])
    )
    return _read_outside(_with_others(_needed(forward_results)), joint, gradients)


def _read_outside(forward: Collection[Node], joint: Graph, gradients: Iterable[Node]) -> set[Node]:
    """What a checkpoint makes again reads what it is made of in backward."""
    late = (n for n in joint.nodes if n.op != "output" and (n not in forward or is_recomputed(n)))
    return {base_of(x) for x in (*gradients, *chain.from_iterable(map(tensors_of, late)))}


def _needed(results: Iterable[Node]) -> set[Node]:
    """All that these are made of."""
    needed, stack = set[Node](), [*results]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    return needed


def _with_others(nodes: set[Node]) -> set[Node]:
    """And the other results of the same operations, as the places of maxima: these cost nothing."""
    users = (user for node in nodes if not is_tensor(node) for user in node.users)
    return nodes.union(user for user in users if user.target is operator.getitem)


def _forward(joint: Graph, needed: set[Node]) -> set[Node]:
    """What needs no gradient of a result. `needed`: by forward for its results; what is not is only
    here if it can be computed in a kernel, or is one more result of a library call."""
    early, forward = without_tangent(joint), set[Node]()
    for node in joint.nodes:
        is_ours = node in needed or has_effects(node) or not is_library(node)
        is_ours = is_ours or node.target is operator.getitem
        if node in early and is_ours and forward.issuperset(node.all_input_nodes):
            forward.add(node)
    return forward


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
        level[node] = max((level[x] + (x in waits and is_library(x)) for x in inputs), default=0)
        if any(x in parent or x in waits for x in inputs):
            waits.add(node)
        if node.op != "call_function" or is_library(node):
            continue
        parent[node] = node
        is_forward = node in forward
        for source in tensors_of(node):
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
    numbers: Mapping[Node, int],
    kernel_of: dict[Node, int],
    seen: set[Node],
    costs: Mapping[Node, float],
    unread: Collection[Node],
) -> SavedValue:
    size = bytes_of(node)
    if is_given(node):
        is_free = node not in unread
        return SavedValue(size, is_given=is_free, is_written=is_free, is_saveable=not is_free)
    sources = tuple(numbers[source] for source in tensors_of(node) if source in numbers)
    if is_recomputed(node):
        return SavedValue(size, sources, is_saveable=False)
    is_asked = node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE
    if is_library(node) or is_asked:
        return SavedValue(size, is_written=True, is_saveable=is_asked or node not in unread)
    if is_view(node):
        return SavedValue(size, sources, is_saveable=False)
    is_made = node in seen or node in costs
    return SavedValue(
        size,
        sources,
        effort_of(node),
        is_written=_leaves(node, kernel_of[node], kernel_of, seen),
        is_saveable=is_made and node.target is not UNIFORM and node not in unread,
        early=costs.get(node),
    )


def _leaves(node: Node, kernel: int, kernel_of: dict[Node, int], seen: set[Node]) -> bool:
    """Whether something else than its kernel reads it, on the way to what is seen of forward."""
    for user in node.users:
        if user.op == "output":
            return node in seen
        if user not in seen:
            continue
        if is_library(user) or kernel_of[user] != kernel:
            return True
        passes = is_view(user) or user.target is operator.getitem
        if passes and _leaves(user, kernel, kernel_of, seen):
            return True
    return False
