"""What is saved for one reader may still be made again for another. The input of a convolution is
in memory for the gradient of its weights; but a kernel that needs no more of it than a ReLU's mask
reads what the ReLU was made from anyway. It gets a copy of the operation, which the split leaves to
it.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from hemstitch.capture.traced_nodes import is_library, is_view
from hemstitch.joint.saved_activations import Question
from hemstitch.planning.saving.saving_problem import Decision, cost_of_kernel, reached


def recompute_reads(joint: Graph, asked: Question, decision: Decision) -> None:
    """`decision` stays as it is; only who reads what it saves changes."""
    problem, items = asked.problem, asked.problem.items
    made_in = _made_in(asked, decision)
    for kernel, needed in zip(asked.kernels, problem.needs):
        loaded = decision.saved
        read = loaded.intersection(reached(problem, needed, loaded))
        able = (number for number in read if items[number].sources is not None)
        for number in sorted(able, key=lambda n: (-items[n].bytes, n)):
            node, less = asked.nodes[number], loaded - {number}
            readers = _readers(asked, node, kernel, made_in)
            before, after = (cost_of_kernel(problem, needed, s) for s in (loaded, less))
            if readers and before is not None and after is not None and after < before:
                _copy_for(joint, node, readers)
                loaded = less


def _made_in(asked: Question, decision: Decision) -> dict[Node, set[int]]:
    """For each value of forward the kernels of backward that make it again: none if it is saved."""
    kernels_of: dict[Node, set[int]] = {node: set() for node in asked.nodes}
    for kernel, needed in zip(asked.kernels, asked.problem.needs):
        for number in reached(asked.problem, needed, decision.saved):
            if number not in decision.saved:
                kernels_of[asked.nodes[number]].add(kernel)
    return kernels_of


def _readers(
    asked: Question, node: Node, kernel: int, made_in: dict[Node, set[int]]
) -> list[Node] | None:
    """Those in this kernel; None where one of them is somewhere else as well."""
    readers: list[Node] = []
    for user in node.users:
        if user in made_in:
            if kernel not in made_in[user]:
                continue
            if user in asked.seen or len(made_in[user]) > 1:
                return None
        elif asked.kernel_of.get(user) != kernel:
            continue
        if _is_operand(user):
            return None
        readers.append(user)
    return readers


def _is_operand(node: Node) -> bool:
    """Of a library call, perhaps through views, in place of what is saved."""
    return is_library(node) or (is_view(node) and any(map(_is_operand, node.users)))


def _copy_for(joint: Graph, node: Node, readers: list[Node]) -> None:
    with joint.inserting_after(node):
        copy = joint.node_copy(node)
    for reader in readers:
        reader.replace_input_with(node, copy)
