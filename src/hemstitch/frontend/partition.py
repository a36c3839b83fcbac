"""The partitioner that AOTAutograd calls: a joint graph becomes forward and backward. What is saved
between them is decided by `fusion/saving`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.fx
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import cleanup_recompute_tags, force_save_bw_mutation_src
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.frontend.library import has_effects
from hemstitch.frontend.loss import numbers
from hemstitch.frontend.rewrites import apply
from hemstitch.frontend.saved import question
from hemstitch.frontend.split import split
from hemstitch.fusion.saving import exact, heuristic
from hemstitch.fusion.saving.budget import within
from hemstitch.fusion.saving.problem import Decision, Problem
from hemstitch.fusion.search.solver import Solver
from hemstitch.options import Options

DEFAULT = Options()
DRAW_SEED = torch.ops.hemstitch.draw_seed.default
PLACE = "hemstitch_place"  # a keyword that tells equal calls with effects apart
NUMBERS = "hemstitch numbers"  # in a forward graph's meta: results that may be losses
SECONDS = 60.0  # for the solver, in all


def partition(
    joint: torch.fx.GraphModule,
    inputs: Any,
    *,
    options: Options = DEFAULT,
    num_fwd_outputs: int,
    **_: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """(forward, backward); what backward needs of forward is returned by the one, given to the
    other."""
    apply(joint, options.rewrites)
    joint.graph.eliminate_dead_code()
    joint.graph = _without_repetitions(joint.graph)
    joint = cleanup_recompute_tags(joint, is_default_partition=False)
    force_save_bw_mutation_src(joint)
    for node in joint.graph.find_nodes(op="call_function", target=DRAW_SEED):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # in a checkpoint too: 8 bytes
    unseen = numbers(joint.graph, num_fwd_outputs) if options.loss_every != 1 else ()
    asked = question(joint.graph, num_fwd_outputs, unseen)
    saved = asked.saved(decide(asked.problem, options))
    forward, backward = split(joint, num_fwd_outputs, saved)
    forward.meta[NUMBERS] = unseen
    return forward, backward


def decide(problem: Problem, options: Options) -> Decision:
    """By the integer program where the planner is one, else by the heuristic."""
    if options.planner != "ilp":
        return within(problem, options.memory_budget, heuristic.decide)
    with Solver() as solver:
        by_program = partial(exact.decide, solver=solver, seconds=SECONDS)
        return within(problem, options.memory_budget, by_program)


def _without_repetitions(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Equal nodes as one, by torch's pass; but no calls with effects: each collective is one that
    the other ranks make too."""
    calls = (node for node in graph.nodes if has_effects(node.target))
    for place, node in enumerate(calls):
        node.kwargs = {**node.kwargs, PLACE: place}
    merged = fx_graph_cse(graph)
    for node in merged.nodes:
        if PLACE in node.kwargs:
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != PLACE}
    return merged
