"""The partitioner that AOTAutograd calls: a joint graph becomes forward and backward. What is saved
between them is decided by `planning/saving`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._functorch.partitioners import (
    cleanup_recompute_tags,
    default_partition,
    force_save_bw_mutation_src,
)
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from hemstitch.capture.effects import drop_unread, may_be_merged, runs_unread
from hemstitch.capture.traced_nodes import (
    base_of,
    is_recomputed,
    refuse_moves,
    without_tangent,
)
from hemstitch.errors import UnsupportedError
from hemstitch.fallback import attempt, copied
from hemstitch.joint.graph_split import split
from hemstitch.joint.joint_graph import JointGraph
from hemstitch.joint.loss_elimination import numbers
from hemstitch.joint.mutated_arguments import (
    arguments_written_later,
    copies_of_written,
    copy_beside_written,
    results_of,
)
from hemstitch.joint.recomputed_reads import recompute_reads
from hemstitch.joint.saved_activations import question, read_by_backward
from hemstitch.options import Options
from hemstitch.planning.saving import exact_saving, saving_heuristic
from hemstitch.planning.saving.budget import within
from hemstitch.planning.saving.saving_problem import Decision, SavingProblem
from hemstitch.planning.search.solver import Solver

DEFAULT = Options()
DRAW_SEED = torch.ops.hemstitch.draw_seed.default
NUMBERS = "hemstitch numbers"  # in a forward graph's meta: results that may be losses
SECONDS = 60.0  # for the solver, in all


def partition(
    joint: torch.fx.GraphModule,
    inputs: Any,
    *,
    traced_rewrites: Callable[[torch.fx.GraphModule], object],
    rewritten: Callable[[JointGraph], JointGraph],
    options: Options = DEFAULT,
    leaves: Sequence[bool] = (),
    num_fwd_outputs: int,
    **others: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """(forward, backward); what backward needs of forward is returned by the one, given to the
    other. Where ours fails, PyTorch's partitioner has `joint`, which is left as it is.
    `traced_rewrites` and `rewritten` change a joint graph in place. `leaves`: which arguments of
    the program are leaves that have a gradient."""
    weights = others.get("static_lifetime_input_indices") or ()
    fixed = [is_leaf or place in weights for place, is_leaf in enumerate(leaves)]
    by_pytorch = partial(
        default_partition, joint, inputs, num_fwd_outputs=num_fwd_outputs, **others
    )

    def ours() -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        parts = _partition(joint, num_fwd_outputs, traced_rewrites, rewritten, options, fixed)
        return by_pytorch() if parts is None else parts

    return attempt(ours, by_pytorch, options.strict, joint)


def _partition(
    joint: torch.fx.GraphModule,
    num_fwd_outputs: int,
    traced_rewrites: Callable[[torch.fx.GraphModule], object],
    rewritten: Callable[[JointGraph], JointGraph],
    options: Options,
    fixed: Sequence[bool],
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule] | None:
    """None: the graph IR cannot say what the joint graph is, as where sizes are read from data."""
    joint = copied(joint)
    for node in joint.graph.nodes:
        refuse_moves(node)
    copy_beside_written(joint.graph)
    drop_unread(joint.graph)
    read = read_by_backward(joint.graph, num_fwd_outputs)
    traced_rewrites(joint)
    joint = cleanup_recompute_tags(joint, is_default_partition=False)
    force_save_bw_mutation_src(joint)
    for node in joint.graph.find_nodes(op="call_function", target=DRAW_SEED):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # in a checkpoint too: 8 bytes
    for node in _once(joint.graph):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        node.meta["partitioner_tag"] = "must_be_in_forward"
    for node in copies_of_written(joint.graph):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        graph = rewritten(JointGraph.of(joint))
    except UnsupportedError:
        return None
    unseen = numbers(joint.graph, num_fwd_outputs) if options.loss_every != 1 else ()
    written = {
        *arguments_written_later(joint.graph, fixed),
        *results_of(joint.graph, num_fwd_outputs),
    }
    asked = question(graph, num_fwd_outputs, unseen, written - read)
    decision = decide(asked.problem, options)
    recompute_reads(graph, asked, decision)
    kept = asked.saved(decision), asked.copied(decision)
    forward, backward = split(joint, num_fwd_outputs, *kept)
    forward.meta[NUMBERS] = unseen
    return forward, backward


def _once(joint: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Calls of forward that check or tell something. Backward has their operands often enough, and
    torch would put them there as well. (What a checkpoint makes again runs again, as in eager.)"""
    for node in without_tangent(joint):
        is_call = node.op == "call_function" and runs_unread(node) and not is_recomputed(node)
        if is_call and not (isinstance(node.target, OpOverload) and node.target._schema.is_mutable):
            yield node


def decide(problem: SavingProblem, options: Options) -> Decision:
    """By the integer program where the planner is one, else by the heuristic."""
    if options.planner != "ilp":
        return within(problem, options.memory_budget, saving_heuristic.decide)
    with Solver() as solver:
        by_program = partial(exact_saving.decide, solver=solver, seconds=SECONDS)
        return within(problem, options.memory_budget, by_program)


def merge_repetitions(graph: torch.fx.Graph) -> None:
    """Equal nodes become one, but no calls with effects: each collective is one that the other
    ranks make too. What the caller gets stays apart. (To import torch's own pass takes half a
    second.)"""
    returned = {base_of(node) for node in graph.output_node().all_input_nodes}
    known: dict[Hashable, torch.fx.Node] = {}
    for node in graph.nodes:
        if not may_be_merged(node) or base_of(node) in returned:
            continue
        first = known.setdefault((node.target, _key((node.args, node.kwargs))), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(argument: Any) -> Hashable:
    """Equal for equal arguments. Python says 1 == 1.0 == True and 0.0 == -0.0; here they differ."""
    if isinstance(argument, Mapping):
        return tuple((name, _key(value)) for name, value in argument.items())
    if isinstance(argument, (tuple, list)):
        return tuple(map(_key, argument))
    return type(argument), argument.hex() if isinstance(argument, float) else argument
