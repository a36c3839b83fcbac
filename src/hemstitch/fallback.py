"""What takes the place of what fails: a graph as PyTorch traced it, after one warning. The option
`strict` has the failure raised instead."""

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
# The user wants to be told; and Dynamo to trace once more, with what was learned.
NO_FAILURE = (OptionError, DifferenceError, RestartAnalysis)


def attempt(
    make: Callable[[], Result],
    otherwise: Callable[[], Result],
    strict: bool = False,
    graph: torch.fx.GraphModule | None = None,
) -> Result:
    """What `make` gives. If it fails, what `otherwise` gives; an error there is PyTorch's own.
    `graph`: of what is compiled, for a failure that has no place in the program."""
    try:
        return make()
    except NO_FAILURE:
        raise
    except Exception as error:
        if strict:
            raise
        failure = error
    result = otherwise()
    place = None
    with suppress(Exception):  # also where that is what fails
        place = None if graph is None else begins(graph)
    warnings.warn(GraphWarning(failure, begins=place), stacklevel=2)
    return result


def by_pytorch(gm: torch.fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
    """A Dynamo graph with nothing of ours in it: AOTAutograd, and PyTorch's operations. These alone
    where AOTAutograd refuses what they do, as to write through `unfold`, or is known to get it
    wrong."""
    backend: Any = lookup_backend("aot_eager")
    try:
        if has_writes_in_turn(gm):
            return gm.forward
        with only_tensors(gm):
            return backend(gm, example_inputs)  # type: ignore[no-any-return]
    except NO_FAILURE:
        raise
    except Exception:  # the program's own is raised again in its call
        return gm.forward


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """For rewrites: one that fails half-way leaves `gm` as it was."""
    graph = torch.fx.Graph()  # `deepcopy` also copies, with a warning, what says how it is called
    graph.set_codegen(gm.graph._codegen)
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta = {**gm.graph.output_node().meta}
    return torch.fx.GraphModule(gm, graph)


def is_repeatable(traced: torch.fx.GraphModule) -> bool:
    """Whether a call that failed can begin again: it changes nothing but the state of random
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
    """A compiled graph on a list of arguments, and the graph as traced for a call that fails, if
    that can begin again: its arguments are still there, and it has changed nothing.

    `holds`: keeps arguments for that. Backward does not: they are what forward has saved, which
    goes bit by bit. Then only a call that has not begun, whose list is not emptied, is recovered.
    """

    def __init__(self, run: Boxed, traced: Boxed, holds: bool, strict: bool) -> None:
        self._boxed_call = True
        self.run = run
        self._traced = traced
        self._holds = holds
        self._strict = strict
        self._is_told = False

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
        """The results all the same, or the error."""
        if self._strict or isinstance(failure, NO_FAILURE) or not (self._holds or has_not_begun):
            raise failure
        results = self._traced([*arguments])
        if not self._is_told:
            self._is_told = True
            what = "a call of a graph cannot run as compiled and"
            warnings.warn(GraphWarning(failure, what), stacklevel=3)
        return results
