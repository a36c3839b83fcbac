"""What a trace takes for granted of numbers and sizes that only the call knows, as the program says
by `torch._check`, is found out by the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import SymBool, SymFloat, SymInt, Tensor

NUMBERS = (bool, int, float, SymInt, SymFloat, SymBool)


@dataclass(frozen=True, slots=True)
class Promised:
    """Calls `target`, whose results have the sizes `shapes`, as all that reads them relies on.
    None: no tensor, or one of nothing promised."""

    name: str
    target: Callable[..., Any]

    def __call__(self, shapes: Sequence[Any], *arguments: Any, **keywords: Any) -> Any:
        results = self.target(*arguments, **keywords)
        parts = results if isinstance(results, (tuple, list)) else (results,)
        for part, shape in zip(parts, shapes):
            if shape is not None and isinstance(part, Tensor) and [*part.shape] != [*shape]:
                raise RuntimeError(
                    f"a runtime assertion failed: {self.name} gave a tensor of the sizes "
                    f"{[*part.shape]}, where the program's checks say {[*shape]}"
                )
        return results


def assertion(node: torch.fx.Node) -> tuple[Callable[..., Any], list[torch.fx.Node]]:
    """A call of `node`, an operation on numbers, as a function of numbers that others give: how
    it is computed of these, and which they are."""
    graph, copies, leaves = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node](), []
    for part in _made_of_numbers(node):
        if part is node or _is_arithmetic(part):
            copies[part] = graph.node_copy(part, copies.__getitem__)
        else:
            copies[part] = graph.placeholder(part.name)
            leaves.append(part)
    graph.output(())
    return torch.fx.GraphModule({}, graph).forward, leaves


def _made_of_numbers(node: torch.fx.Node) -> list[torch.fx.Node]:
    """All that `node` is computed of, down to what is no arithmetic, in the order of the trace."""
    needed, stack = {node}, [*node.all_input_nodes]
    while stack:
        part = stack.pop()
        if part not in needed:
            needed.add(part)
            stack += part.all_input_nodes if _is_arithmetic(part) else []
    leaves = [part for part in needed if part is not node and not _is_arithmetic(part)]
    rest = needed.difference(leaves)
    return [*leaves, *(part for part in node.graph.nodes if part in rest)]


def _is_arithmetic(node: torch.fx.Node) -> bool:
    """Of numbers alone."""
    parts = (node, *node.all_input_nodes)
    is_call = node.op == "call_function" and bool(node.all_input_nodes)
    return is_call and all(isinstance(part.meta.get("val"), NUMBERS) for part in parts)
