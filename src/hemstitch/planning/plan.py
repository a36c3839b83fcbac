"""The plan: steps in order, each a kernel or a library call, and why there are not fewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from hemstitch.ir.graph import Graph, InputAttr, Node
from hemstitch.kernel_ir.nodes import Role
from hemstitch.planning.cached_plan import CachedPlan
from hemstitch.planning.materialised_views import Alias
from hemstitch.stitching.group import Group, Tensor
from hemstitch.stitching.refusal import OPAQUE, Refusal
from hemstitch.stitching.stitcher import Stitched


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One launch: groups that need nothing of each other, stitched. `panels`: packed operands that
    it fills for later ones or finds, which are no values of the graph (see `prepacking.py`)."""

    groups: tuple[Group, ...]
    stitched: Stitched
    panels: frozenset[Tensor] = frozenset()

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self._with(Role.INPUT)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return self._with(Role.OUTPUT)

    def _with(self, role: Role) -> tuple[Tensor, ...]:
        kernel = self.stitched.kernel
        pairs = zip(kernel.parameters, self.stitched.tensors)
        return tuple(tensor for buffer, tensor in pairs if buffer.role is role)


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """One library call; `results[i]` is None where nobody reads that result."""

    node: Node
    operands: tuple[Alias, ...]
    results: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class LibraryFormStep:
    """Nodes that even alone are no kernel; they run in their library form."""

    group: Group
    why: Refusal

    @property
    def is_meant(self) -> bool:
        """Not for want of a kernel: a complex argument, for one, is replaced by the library."""
        return self.why.check == OPAQUE


Step = Union[KernelStep, LibraryStep, LibraryFormStep]


@dataclass(frozen=True, slots=True)
class Plan:
    """`graph`: what the steps compute, with inlined matmuls. `outputs`: where each output of the
    graph is found. `refusals`: for pairs of neighbouring kernels that stayed apart, the check that
    refused to fuse them. `cached_plan`: rebuilds this plan without a search; None for a plan that
    only packs operands."""

    graph: Graph
    steps: tuple[Step, ...]
    outputs: tuple[Alias, ...]
    refusals: tuple[tuple[str, Refusal], ...]
    cached_plan: CachedPlan | None = None

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, KernelStep))

    @property
    def arguments(self) -> frozenset[int]:
        """Positions of those that it has to do with."""
        touched = {alias.tensor for alias in self.outputs}
        for step in self.steps:
            match step:
                case KernelStep():
                    touched.update(step.stitched.tensors)
                case LibraryStep():
                    touched.update(operand.tensor for operand in step.operands)
                case LibraryFormStep():
                    touched.update(step.group.reads.values())
                    touched.update(write.tensor for write in step.group.writes)
        attributes = [tensor.node.attr for tensor in touched if tensor.is_argument]
        return frozenset(attr.position for attr in attributes if isinstance(attr, InputAttr))
