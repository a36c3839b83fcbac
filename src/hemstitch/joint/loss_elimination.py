"""Training steps that do not compute the loss's value, which no gradient depends on (EVT 2024,
section 3.1, "loss elimination"). Off unless the option `loss_every` says so: only the program knows
whether somebody looks at the value. What was not computed is NaN, so that nobody takes it for a
loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._guards import TracingContext

from hemstitch.capture.effects import drop_unread
from hemstitch.fallback import copied

Boxed = Callable[[list[Any]], Sequence[Any]]


def numbers(joint: torch.fx.Graph, results: int) -> tuple[int, ...]:
    """Which of the first `results` outputs of a joint graph may be losses."""
    [outputs] = joint.output_node().args
    assert isinstance(outputs, (tuple, list))
    return tuple(n for n, node in enumerate(outputs[:results]) if _is_number(node))


def losses(places: Sequence[int]) -> tuple[int, ...]:
    """Those of them that gradients start from, which is known once the graph has been split."""
    context = TracingContext.try_get()
    record = context.fw_metadata if context is not None else None
    if record is None:
        return ()
    first = record.num_mutated_inp_runtime_indices  # the graph's first outputs are new arguments
    trained = {first + n for n, info in enumerate(record.output_info) if info.requires_grad}
    return tuple(place for place in places if place in trained)


def without(forward: torch.fx.GraphModule, places: Sequence[int]) -> torch.fx.GraphModule:
    """The same graph but for these results, and for what only they need."""
    graph = copied(forward).graph
    output = graph.output_node()
    [results] = output.args
    assert isinstance(results, (tuple, list))
    new = [*results]
    with graph.inserting_before(output):
        for place in places:
            node = results[place]
            assert isinstance(node, torch.fx.Node)
            value = node.meta["val"]
            new[place] = graph.call_function(
                torch.ops.aten.full.default,
                ([], math.nan),
                {"dtype": value.dtype, "device": value.device},
            )
            new[place].meta = {
                key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta
            }
    output.args = (tuple(new),)
    drop_unread(graph)
    return torch.fx.GraphModule(forward, graph)


class EveryNth:
    """A forward pass with the loss in every n-th call, from the first on, and without in others."""

    def __init__(self, whole: Boxed, short: Boxed, every: int) -> None:
        self._boxed_call = True
        self._whole = whole
        self._short = short
        self._every = every
        self._calls = count()  # `next` is atomic

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        is_due = next(self._calls) % self._every == 0
        return (self._whole if is_due else self._short)(arguments)


def _is_number(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point()
