"""The split of a joint graph into forward and backward: what is saved between them is decided by
`fusion/saving`, and torch's min-cut is told.

Autograd's formulas detach what they use. Torch's min-cut takes a `detach` for something that has to
be kept, and with it the value, so it must not get to see one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.fx
from functorch.compile import min_cut_rematerialization_partition
from torch._functorch import config
from torch._functorch.compile_utils import fx_graph_cse
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.frontend.library import has_effects
from hemstitch.frontend.loss import numbers
from hemstitch.frontend.rewrites import apply
from hemstitch.frontend.saved import question
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
    **keywords: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """(forward, backward); what backward needs of forward is returned by the one, given to the
    other."""
    apply(joint, options.rewrites)
    _bypass_detach(joint)
    joint.graph.eliminate_dead_code()
    joint.graph = _without_repetitions(joint.graph)
    for node in joint.graph.find_nodes(op="call_function", target=DRAW_SEED):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # in a checkpoint too: 8 bytes
    unseen = numbers(joint.graph, num_fwd_outputs) if options.loss_every != 1 else ()
    asked = question(joint.graph, num_fwd_outputs, unseen)
    saved = decide(asked.problem, options).saved
    _tell(CheckpointPolicy.MUST_SAVE, (asked.nodes[number] for number in saved))
    _tell(CheckpointPolicy.MUST_RECOMPUTE, asked.made_again(saved))
    with config.patch(cse=False):  # it would lose what it is told, and merge collectives
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **keywords
        )
    forward.meta[NUMBERS] = unseen
    return forward, backward


def _tell(policy: CheckpointPolicy, nodes: Iterable[torch.fx.Node]) -> None:
    for node in nodes:
        if "recompute" not in node.meta:  # else the program has said so itself
            node.meta["recompute"] = policy
            node.meta["ac_graph_id"] = 0


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


def _bypass_detach(joint: torch.fx.GraphModule) -> None:
    """Results keep theirs: of two that are one tensor, only one may have a gradient."""
    detach = torch.ops.aten.detach.default
    for node in joint.graph.find_nodes(op="call_function", target=detach):
        (source,) = node.args
        node.replace_all_uses_with(source, delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            joint.graph.erase_node(node)
