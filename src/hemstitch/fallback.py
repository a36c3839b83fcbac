"""The fallback for what cannot be compiled or fails in a call: the graph as PyTorch traced it,
after one warning. With the option `strict` the failure is raised instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
import torch.fx
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import RestartAnalysis

from hemstitch.before_autograd.overlapping_writes import has_writes_in_turn
from hemstitch.capture.effects import has_effects
from hemstitch.capture.origin import begins
from hemstitch.capture.scalar_arguments import only_tensors
from hemstitch.capture.seeded_random import draw_seeds
from hemstitch.errors import DifferenceError, GraphWarning, OptionError

Boxed = Callable[[list[Any]], Sequence[Any]]
Result = TypeVar("Result")
# The first two are for the user; the third makes Dynamo trace again.
NO_FAILURE = (OptionError, DifferenceError, RestartAnalysis)


def attempt(
    make: Callable[[], Result],
    fallback: Callable[[], Result],
    strict: bool = False,
    graph: torch.fx.GraphModule | None = None,
) -> Result:
    """The result of `make`, or of `fallback` if `make` fails; errors of `fallback` are PyTorch's
    own. `graph`: what is compiled, for a failure without a location."""
    try:
        return make()
    except NO_FAILURE:
        raise
    except Exception as error:
        if strict:
            raise
        failure = error
    result = fallback()
    location = None
    with suppress(Exception):  # the search may be what fails
        location = None if graph is None else begins(graph)
    warnings.warn(GraphWarning(failure, begins=location), stacklevel=2)
    return result


def by_pytorch(gm: torch.fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
    """A Dynamo graph through AOTAutograd and PyTorch's operations only. Without AOTAutograd where
    it refuses the graph, for example a write through `unfold`, or is known to be wrong."""
    backend: Any = lookup_backend("aot_eager")
    try:
        if has_writes_in_turn(gm):
            return gm.forward
        with only_tensors(gm):
            return backend(gm, example_inputs)  # type: ignore[no-any-return]
    except NO_FAILURE:
        raise
    except Exception:  # an error of the program itself is raised again by the call
        return gm.forward


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy for rewrites, so that a rewrite that fails leaves `gm` unchanged."""
    graph = torch.fx.Graph()  # `deepcopy` warns about the code generator
    graph.set_codegen(gm.graph._codegen)
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta = {**gm.graph.output_node().meta}
    return torch.fx.GraphModule(gm, graph)


def is_repeatable(traced: torch.fx.GraphModule) -> bool:
    """Whether a failed call can be run again: it has no side effect but on the state of random
    numbers."""
    return not any(map(_changes_something, traced.graph.nodes))


def _changes_something(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or _is_random(node.target):
        return False
    return node.is_impure() or has_effects(node)


def _is_random(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return target is draw_seeds
    return torch.Tag.nondeterministic_seeded in target.tags and not target._schema.is_mutable


class Recoverable:
    """A compiled graph, boxed, with the traced graph as the fallback of a failed call. A call can
    fall back if its arguments are still alive and it had no side effect.
    `holds`: keep the arguments alive for the fallback. Backward does not, so that saved activations
    are freed as it goes. Then only a call that has not emptied its argument list falls back.
    """

    def __init__(self, run: Boxed, traced: Boxed, holds: bool, strict: bool) -> None:
        self._boxed_call = True
        self.run = run
        self._traced = traced
        self._holds = holds
        self._strict = strict
        self._has_warned = False

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        count = len(arguments)
        held = [*arguments] if self._holds else arguments
        try:
            return self.run(arguments)
        except Exception as error:
            failure = error
        return self.recovered(failure, held[:count], len(arguments) >= count > 0)

    def recovered(
        self, failure: Exception, arguments: Sequence[Any], has_not_begun: bool
    ) -> Sequence[Any]:
        """The results of the traced graph, or the error."""
        if self._strict or isinstance(failure, NO_FAILURE) or not (self._holds or has_not_begun):
            raise failure
        results = self._traced([*arguments])
        if not self._has_warned:
            self._has_warned = True
            subject = "a call of a graph cannot run as compiled and"
            warnings.warn(GraphWarning(failure, subject), stacklevel=3)
        return results
