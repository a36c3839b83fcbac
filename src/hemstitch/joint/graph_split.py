"""A joint graph cut into forward and backward at given values. What backward reads is saved if it
is one of them; else it is computed again, from what it is made of.

The two graphs are put together by torch, whose order of saved values AOTAutograd relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Set
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._functorch._aot_autograd import graph_compile
from torch._functorch.partitioners import (
    _extract_fwd_bwd_modules,
    _must_be_in_backward,
    functionalize_rng_ops,
    has_recomputable_rng_ops,
    reordering_to_mimic_autograd_engine,
    thread_graphsafe_rng_from_hops,
)
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx import Graph, GraphModule, Node

from hemstitch.capture.effects import has_effects, runs_unread
from hemstitch.capture.fake_calls import fake_mode, value_of_call
from hemstitch.capture.traced_nodes import (
    base_of,
    elements_of,
    is_library,
    is_tensor,
    is_view,
    outputs_of,
    without_tangent,
)

copy_ = torch.ops.aten.copy_.default
_is_opaque: Callable[[Any], bool] = getattr(graph_compile, "is_opaque_node", lambda node: False)


def split(
    joint: GraphModule, results: int, saved: Container[Node], copied: Container[Node] = ()
) -> tuple[GraphModule, GraphModule]:
    """(forward, backward). `results`: how many outputs of `joint` are forward's; gradients follow.
    `saved`: contains what is not computed again. Of arguments, those that backward reads are saved
    too; they are in memory. `copied`: contains those that a copy is saved of."""
    read = _kept(joint.graph, results, saved)
    kept = [version for node in read for version in _with_what_it_was(node, node in copied)]
    numbers = [node for node in kept if _is_number(node)]
    opaque = [node for node in kept if _is_opaque(node)]
    tensors = [node for node in kept if not _is_number(node) and not _is_opaque(node)]
    others: dict[str, Any] = {"saved_opaque_nodes": opaque} if opaque else {}  # not in torch 2.11
    forward, backward = _extract_fwd_bwd_modules(
        joint, tensors, numbers, num_fwd_outputs=results, **others
    )
    for node in joint.graph.nodes:
        if node.op == "call_function" and not has_effects(node):
            node.meta.pop("recompute", None)  # draws nothing, though PyTorch says that it may
    if has_recomputable_rng_ops(joint):  # a checkpoint's own
        forward, backward = functionalize_rng_ops(joint, forward, backward, len(numbers))
        for graph in (forward.graph, backward.graph):
            _complete(graph)
    backward = reordering_to_mimic_autograd_engine(backward)
    return (
        thread_graphsafe_rng_from_hops(forward, is_backward=False),
        thread_graphsafe_rng_from_hops(backward, is_backward=True),
    )


def _complete(graph: Graph) -> None:
    """What torch's calls with a state of random numbers give, which it does not note. Of the state
    itself it takes the size for a symbol that no argument has."""
    for node in graph.nodes:
        if node.target is run_and_save_rng_state:
            state, result = sorted(node.users, key=lambda user: int(user.args[1]))
            state.meta["val"] = _of_known_size(state.meta["val"])
            node.meta["val"] = state.meta["val"], result.meta["val"]
        elif node.target is run_with_rng_state:
            state = node.args[0]
            state.meta["val"] = _of_known_size(state.meta["val"])
            node.meta["val"] = value_of_call(node)


def _of_known_size(state: Tensor) -> Tensor:
    sizes: Iterable[Any] = state.shape
    known = [n.node.hint if isinstance(n, torch.SymInt) else n for n in sizes]
    with fake_mode(state):
        return torch.empty(known, dtype=state.dtype)


def _kept(joint: Graph, results: int, saved: Container[Node]) -> list[Node]:
    """What of forward backward reads."""
    early = without_tangent(joint)
    gradients = [node for node in outputs_of(joint)[results:] if isinstance(node, Node)]
    calls = (node for node in joint.nodes if node.op == "call_function" and node not in early)
    stack = [*gradients, *(node for node in calls if runs_unread(node))]
    reached, kept = set(stack), set[Node]()
    while stack:
        node = stack.pop()
        is_kept = node.op == "placeholder" or node in saved or _is_size(node)
        if is_kept and node in early:
            kept.add(node)
            continue
        new = [source for source in node.all_input_nodes if source not in reached]
        reached.update(new)
        stack.extend(new)
    computed = reached - kept  # in backward
    stays = {*gradients, *outputs_of(joint)[:results]}
    last = {_last_view(node, computed, stays) for node in kept}
    return [node for node in joint.nodes if node in last]


def _last_view(node: Node, computed: Set[Node], stays: Set[object]) -> Node:
    """Where backward reads nothing but one view of it, that: forward may have no more in memory.
    `stays`: what it has."""
    while node.op == "call_function" and node not in stays:
        readers = [user for user in node.users if user in computed]
        # A view of another tensor may read its size.
        if len(readers) != 1 or not _is_part(readers[0]) or readers[0].args[:1] != (node,):
            break
        [node] = readers
    return node


def _is_part(node: Node) -> bool:
    """Whether it is a view of all of its source, or of a part where no library call has made it:
    what that gives is in memory as a whole."""
    if not is_view(node) or not is_tensor(node):
        return False
    [source] = node.all_input_nodes[:1]
    size, whole = elements_of(node), elements_of(source)
    return size == whole or (size < whole and not is_library(base_of(source)))


def _with_what_it_was(node: Node, is_copied: bool) -> list[Node]:
    """Of an argument that forward writes to, a copy from before: else what it became is saved. The
    argument itself, where backward writes to it. `is_copied`: a copy in any case."""
    writes = {user for user in node.users if user.target is copy_ and user.args[0] is node}
    late = {*filter(_must_be_in_backward, writes)}
    if late == writes and not is_copied:
        return [node]
    with node.graph.inserting_after(node):
        old = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    old.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
    readers = [user for user in node.users if user not in writes | {old} and user.op != "output"]
    for reader in readers:
        reader.replace_input_with(node, old)
    return [old, node] if late else [old]


def _is_size(node: Node) -> bool:
    """A float is computed again from sizes: not every torch takes it from one pass to the other."""
    return isinstance(node.meta.get("val"), torch.SymInt)


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
