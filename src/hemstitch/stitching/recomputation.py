"""Limits how often one kernel evaluates values. A value that is read at several indices is
evaluated at each of them, with its operands: without a limit, a chain of such values grows
exponentially."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hemstitch.ir.graph import Node
from hemstitch.stitching.group import Group
from hemstitch.stitching.refusal import Refused

EVALUATIONS_PER_NODE = 8  # at most; kernels of models have 1 to 4
FEW_EVALUATIONS = 128  # always allowed


class Evaluations:
    """Counts the (value, index) pairs of a kernel."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._limit = sum(map(_most, groups))
        self._count = 0

    def add(self) -> None:
        """Counts one more. Raises Refused beyond the limit."""
        self._count += 1
        if self._count > self._limit:
            why = f"more than {self._limit} values, most of them read at many indices"
            raise Refused("evaluations", why, lasts=True)


def _most(group: Group) -> int:
    """The limit of a group. A single member has no smaller kernels, and few views
    (`planning/materialisation.py`)."""
    if len(group.members) <= 1:
        return sys.maxsize
    visited: set[Node] = set()
    work = [write.value for write in group.writes]
    work += group.members
    while work:
        node = work.pop()
        if node not in visited:
            visited.add(node)
            work.extend(() if node in group.reads else node.inputs)
    return max(FEW_EVALUATIONS, EVALUATIONS_PER_NODE * len(visited))
