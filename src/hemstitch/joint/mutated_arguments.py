"""What a program writes to: arguments, when forward is over, and until backward runs its arguments
and results. Autograd raises an error where what it has saved was written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, Node

from hemstitch.capture.traced_nodes import (
    COPIED,
    base_of,
    copy_of_written,
    is_given,
    is_tensor,
    outputs_of,
)


def arguments_written_later(joint: Graph, fixed: Sequence[bool]) -> Iterator[Node]:
    """Arguments that the program may write to until backward runs. `fixed`: of each whether it does
    not, as weights and buffers, and leaves, which autograd does not let it write to."""
    arguments = [node for node in joint.find_nodes(op="placeholder") if _is_programs(node)]
    if len(arguments) == len(fixed):  # else AOTAutograd has made others of them
        pairs = zip(arguments, fixed)
        yield from (node for node, is_fixed in pairs if not is_fixed and is_tensor(node))


def _is_programs(argument: Node) -> bool:
    return argument.name.startswith("primals")


def results_of(joint: Graph, results: int) -> Iterator[Node]:
    """What is in memory for the user, who may write to it."""
    for node in outputs_of(joint)[:results]:
        if isinstance(node, Node) and not is_given(base_of(node)):
            yield base_of(node)


def copy_beside_written(joint: Graph) -> None:
    """Arguments that share memory with one that the caller writes to: autograd counts writes by
    memory, so that what is saved of them counts as written to as well."""
    arguments = [
        node
        for node in joint.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), FakeTensor)
    ]
    written = {_memory(node) for node in arguments if copy_of_written(node) is not None}
    for argument in arguments:
        if _memory(argument) in written and copy_of_written(argument) is None:
            _read_by_copy(joint, argument, arguments[-1])


def _memory(argument: Node) -> int:
    storage: int = argument.meta["val"].untyped_storage()._cdata
    return storage


def _read_by_copy(joint: Graph, argument: Node, behind: Node) -> None:
    value = argument.meta["val"]
    with joint.inserting_after(behind), value.fake_mode:
        copy = joint.call_function(torch.ops.aten.clone.default, (argument,))
        copy.meta |= {"val": value.detach().clone(), COPIED: True}
    argument.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def copies_of_written(joint: Graph) -> Iterator[Node]:
    """Arguments as they were before the caller writes to them: when forward is over, they cannot be
    had from the arguments any more."""
    for argument in joint.find_nodes(op="placeholder"):
        copy = copy_of_written(argument)
        if copy is not None:
            yield copy
