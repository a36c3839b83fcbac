"""Whether groups can be kernels, found by stitching them; each kind of group once.

The layers of a model repeat, and so do the rounds of planning: what was stitched for one is known
for all that are the same but for their tensors (stitching/kernel_identity.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from hemstitch.ir.types import DType
from hemstitch.kernel_ir.hazard import hazard
from hemstitch.machine.record import Machine
from hemstitch.stitching.deadline import Deadline
from hemstitch.stitching.group import Group
from hemstitch.stitching.kernel_estimate import kernel_seconds, least_seconds
from hemstitch.stitching.kernel_identity import Identity, identity
from hemstitch.stitching.refusal import OPAQUE, Refusal, Refused
from hemstitch.stitching.stitcher import Stitched, stitch


@dataclass(slots=True)
class Trials:
    """For one machine and one set of hints, until a deadline: then each method raises OutOfTime."""

    machine: Machine
    deadline: Deadline = field(default_factory=Deadline)
    _kinds: dict[Hashable, int] = field(default_factory=dict)  # their numbers, by their keys
    _identities: dict[tuple[Group, ...], tuple[Identity, int]] = field(default_factory=dict)
    _refusals: dict[int, Refusal | None] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)
    _kernels: dict[int, tuple[Stitched, tuple[int, ...]]] = field(default_factory=dict)
    _apart: Trials | None = None

    @property
    def apart(self) -> Trials:
        """For the same machine where no task waits for another; kept, as all that is known here."""
        if self._apart is None:
            self._apart = Trials(replace(self.machine, has_grid_barrier=False), self.deadline)
        return self._apart

    def refusal(self, group: Group) -> Refusal | None:
        """Why this group alone is no kernel, if it is none."""
        group_identity, kind = self._known([group])
        if kind not in self._refusals:
            self._refusals[kind] = self._attempt(group, group_identity, kind)
        return self._refusals[kind]

    def seconds(self, groups: Sequence[Group]) -> float:
        """What a call of these groups' kernel takes, by the machine model."""
        group_identity, kind = self._known(groups)
        if kind not in self._seconds:
            kernel = self._stitched(groups, group_identity, kind).kernel
            self._seconds[kind] = kernel_seconds(kernel, self.machine, groups[0].hints)
        return self._seconds[kind]

    def least_seconds(self, group: Group, kernels: int) -> float:
        """What a call of so many kernels in place of this group's takes at least."""
        kernel = self.stitched([group], "attempt").kernel
        return least_seconds(kernel, self.machine, group.hints, kernels)

    def stitched(self, groups: Sequence[Group], name: str) -> Stitched:
        """As `stitch`; a kernel that is known is bound to other tensors and given another name."""
        stitched = self._stitched(groups, *self._known(groups))
        return replace(stitched, kernel=replace(stitched.kernel, name=name))

    def _known(self, groups: Sequence[Group]) -> tuple[Identity, int]:
        """What they are, and the number of their kind: keys are long, and asked for once."""
        self.deadline.check()
        key = tuple(groups)
        if key not in self._identities:
            group_identity = identity(groups, self.machine.alignment)
            self._identities[key] = (
                group_identity,
                self._kinds.setdefault(group_identity.key, len(self._kinds)),
            )
        return self._identities[key]

    def _attempt(self, group: Group, group_identity: Identity, kind: int) -> Refusal | None:
        if any(write.value.type.dtype is DType.OPAQUE for write in group.writes):
            return Refusal(OPAQUE, "no kernel writes a type that only library calls touch")
        read = set(group.reads.values())
        if any(write.tensor in read and not write.tensor.is_argument for write in group.writes):
            return Refusal("memory", "it would read a tensor that it has yet to write")
        try:
            stitched = self._stitched([group], group_identity, kind)
        except Refused as refused:
            return refused.refusal
        problem = hazard(stitched.kernel, stitched.replaced)
        return Refusal("mutation", problem) if problem is not None else None

    def _stitched(self, groups: Sequence[Group], group_identity: Identity, kind: int) -> Stitched:
        if kind not in self._kernels:
            stitched = stitch(groups, self.machine, "attempt", group_identity, self.deadline)
            number = {tensor: k for k, tensor in enumerate(group_identity.tensors)}
            self._kernels[kind] = stitched, tuple(number[t] for t in stitched.tensors)
        stitched, numbers = self._kernels[kind]
        tensors = tuple(group_identity.tensors[number] for number in numbers)
        return Stitched(stitched.kernel, tensors, tuple(group_identity.places[n] for n in numbers))
