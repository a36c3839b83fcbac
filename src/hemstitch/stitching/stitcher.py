"""Stitching: groups of nodes become one kernel. `stitch` is the entry point; the other modules of
this package are its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hemstitch.kernel_ir.dependence import row_problem
from hemstitch.kernel_ir.nodes import Buffer, Kernel, Nest, Role
from hemstitch.machine.record import Execution, Machine
from hemstitch.stitching.buffers import Buffers
from hemstitch.stitching.deadline import Deadline
from hemstitch.stitching.group import Group, Tensor
from hemstitch.stitching.kernel_identity import Identity, identity
from hemstitch.stitching.nest_builder import NestBuilder
from hemstitch.stitching.online_softmax import with_online_softmax
from hemstitch.stitching.partial_results import combining_nest
from hemstitch.stitching.phase_begin import with_begins
from hemstitch.stitching.recomputation import Evaluations
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.scatter_mapping import filling_nest
from hemstitch.stitching.schedule import schedule
from hemstitch.stitching.transpose_tiles import with_transpose_tiles


@dataclass(frozen=True, slots=True)
class Stitched:
    """A kernel and the tensors of its parameters, in order. `places`: for each, the element at
    which the parameter begins."""

    kernel: Kernel
    tensors: tuple[Tensor, ...]
    places: tuple[int, ...]

    @property
    def replaced(self) -> frozenset[Buffer]:
        """Parameters of arguments that the kernel overwrites."""
        pairs = zip(self.kernel.parameters, self.tensors)
        return frozenset(b for b, t in pairs if t.is_argument and b.role is Role.OUTPUT)


def stitch(
    groups: Sequence[Group],
    machine: Machine,
    name: str,
    known: Identity | None = None,
    deadline: Deadline | None = None,
) -> Stitched:
    """One kernel for independent groups (AStitch's independent scheme). `known`: their identity, if
    it has been computed.

    Raises Refused where a group cannot be one kernel, OutOfTime after `deadline`.
    """
    written = frozenset(write.tensor for group in groups for write in group.writes)
    bound = known or identity(groups, machine.alignment)
    places = dict(zip(bound.tensors, bound.places))
    room, is_double = machine.l2_bytes // 2, machine.accumulator_bytes == 8
    buffers = Buffers(written, places, room, Evaluations(groups), is_double, deadline)
    phases: list[list[Nest]] = []
    for whole in groups:
        group = with_online_softmax(whole) if machine.execution is Execution.SIMT else whole
        scheduled = schedule(group, machine)
        if scheduled.phases > 1 and not machine.has_grid_barrier:
            why = "it needs a grid-wide barrier, and `global_stitching` is off"
            raise Refused("global", why)
        for phase in range(scheduled.phases):
            if phase == len(phases):
                phases.append([])
            for nest in range(len(scheduled.mappings)):
                if scheduled.at(nest, phase):
                    built = NestBuilder(group, scheduled, buffers, nest, phase).build()
                    if scheduled.unification.contracted and machine.execution is Execution.SIMT:
                        _check_rows(built)
                    if machine.execution is Execution.SIMD:
                        built = with_transpose_tiles(built, buffers, machine)
                    phases[phase].append(built)
            phases[phase].extend(filling_nest(buffers, w) for w in scheduled.filled_in(phase))
            for node in scheduled.combined_in(phase):
                phases[phase].append(combining_nest(buffers, node, machine))
    parameters = [*buffers.tensors.values(), *buffers.scratch]
    hints = groups[0].hints
    kernel = Kernel(name, tuple(parameters), with_begins(phases, machine, hints))
    return Stitched(kernel, tuple(buffers.tensors), tuple(places[t] for t in buffers.tensors))


def _check_rows(nest: Nest) -> None:
    problem = row_problem(nest)
    if problem is not None:
        raise Refused("matmul", problem)
