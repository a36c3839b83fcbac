"""Records calls as CUDA graphs with PyTorch's CUDA graph trees, as its backend "cudagraphs" does.
They own the memory of results, follow a forward with its backward, and copy arguments that moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.cudagraphs import (
    find_input_mutations,
    get_device_node_mapping,
    get_stack_traces,
)
from torch._guards import TracingContext
from torch._inductor import cudagraph_trees
from torch._inductor.cudagraph_utils import (
    check_multiple_devices_or_any_cpu_nodes,
    get_placeholder_info,
    log_cudagraph_skip_and_bump_counter,
)
from torch._inductor.utils import count_tangents, get_first_incompatible_cudagraph_node

Run = Callable[[list[Any]], Any]


@dataclass(slots=True)
class Recorder:
    """For the graphs of one `torch.compile`: backward is recorded only if forward was. `forward`:
    the device of the recorded forward."""

    forward: int | None = None

    def record(
        self,
        kind: str,
        run: Run,
        traced: torch.fx.GraphModule,
        inputs: Sequence[Any],
        constants: tuple[torch.Tensor, ...] = (),
    ) -> Run:
        """A callable that records `run` and replays it later, or `run` itself where it cannot be
        recorded, which PyTorch logs and counts. `kind`: "forward", "backward" or "inference";
        `constants`: tensors that `run` holds."""
        if kind == "backward" and self.forward is None:
            return run
        fixed = list(range(count_tangents(traced))) if kind == "backward" else _parameters()
        why = reason_against(traced, inputs, fixed)
        if why is not None:
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {why}")
            return run if self.forward is None else _backward_unrecorded(run, self.forward)
        (device,) = get_device_node_mapping(traced)
        if kind == "forward":
            self.forward = device.index
        recorded: Any = cudagraph_trees.cudagraphify_impl(
            run,
            list(inputs),
            fixed,
            device_index=device.index,
            is_backward=kind == "backward",
            is_inference=kind == "inference",
            stack_traces=get_stack_traces(traced),
            constants=constants,
            placeholders=tuple(get_placeholder_info(traced.graph)),
            mutated_input_idxs=tuple(sorted(find_input_mutations(traced.graph))),
        )
        recorded._boxed_call = True
        return recorded  # type: ignore[no-any-return]


def reason_against(
    traced: torch.fx.GraphModule, inputs: Sequence[object], fixed: Sequence[int]
) -> str | None:
    """Why a graph is not recorded, or None. A replay uses copies of the arguments that are not
    `fixed`, and thus cannot write to them."""
    if any(map(_is_symbolic, inputs)):
        return "sizes that are not known"
    if find_input_mutations(traced.graph) - set(fixed):
        return "arguments that are written to"
    places = get_device_node_mapping(traced)
    if why := check_multiple_devices_or_any_cpu_nodes(dict(places)):
        return str(why)
    if node := get_first_incompatible_cudagraph_node(traced):
        return f"an operation that cannot be recorded ({node.name})"
    return None


def _is_symbolic(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _parameters() -> list[int]:
    """Arguments with static addresses; a call with other addresses is recorded again."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return []
    return list(context.fw_metadata.static_input_indices)


def _backward_unrecorded(run: Run, device: int) -> Run:
    """A backward that is not recorded after a forward that is: the tree must be told that it
    ran."""

    def after_forward(arguments: list[Any]) -> Any:
        manager = cudagraph_trees.get_manager(device, create_if_none_exists=False)
        assert manager is not None, "forward ran before"
        manager.set_to_running_backward()
        return run(arguments)

    after_forward._boxed_call = True  # type: ignore[attr-defined]
    return after_forward
