"""Trial stitching: tells whether groups can be kernels, and what they cost; cached by kind.

The layers of a model repeat, and so do the rounds of planning. A result holds for all groups that
are equal up to their tensors (stitching/kernel_identity.py).
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
    _kinds: dict[Hashable, int] = field(default_factory=dict)  # numbers by keys
    _identities: dict[tuple[Group, ...], tuple[Identity, int]] = field(default_factory=dict)
    _refusals: dict[int, Refusal | None] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)
    _kernels: dict[int, tuple[Stitched, tuple[int, ...]]] = field(default_factory=dict)
    _without_barriers: Trials | None = None

    @property
    def without_barriers(self) -> Trials:
        """For the same machine without grid-wide barriers; cached."""
        if self._without_barriers is None:
            self._without_barriers = Trials(
                replace(self.machine, has_grid_barrier=False), self.deadline
            )
        return self._without_barriers

    def refusal(self, group: Group) -> Refusal | None:
        """Why this group alone cannot be a kernel; None if it can."""
        group_identity, kind = self._known([group])
        if kind not in self._refusals:
            self._refusals[kind] = self._attempt(group, group_identity, kind)
        return self._refusals[kind]

    def seconds(self, groups: Sequence[Group]) -> float:
        """The time of a call of these groups' kernel, by the machine model."""
        group_identity, kind = self._known(groups)
        if kind not in self._seconds:
            kernel = self._stitched(groups, group_identity, kind).kernel
            self._seconds[kind] = kernel_seconds(kernel, self.machine, groups[0].hints)
        return self._seconds[kind]

    def least_seconds(self, group: Group, kernels: int) -> float:
        """A lower bound on the time of this group split into so many kernels."""
        kernel = self.stitched([group], "attempt").kernel
        return least_seconds(kernel, self.machine, group.hints, kernels)

    def stitched(self, groups: Sequence[Group], name: str) -> Stitched:
        """As `stitch`; a cached kernel is bound to these tensors and renamed."""
        stitched = self._stitched(groups, *self._known(groups))
        return replace(stitched, kernel=replace(stitched.kernel, name=name))

    def _known(self, groups: Sequence[Group]) -> tuple[Identity, int]:
        """The identity of the groups, and the number of their kind, which stands for the long
        key."""
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
