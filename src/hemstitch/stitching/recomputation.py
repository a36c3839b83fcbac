"""How many values one kernel computes. One that is read at several indices is computed at each, and
so is what it is made of: without a limit a chain of them is computed once for each path through it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hemstitch.ir.graph import Node
from hemstitch.stitching.group import Group
from hemstitch.stitching.refusal import Refused

EVALUATIONS_A_NODE = 8  # at most; kernels of models have 1 to 4
FEW_EVALUATIONS = 128  # no reason to refuse a small kernel


class Evaluations:
    """Counts the values of a kernel, each at each index."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._limit = sum(map(_most, groups))
        self._count = 0

    def add(self) -> None:
        """One more, or Refused."""
        self._count += 1
        if self._count > self._limit:
            why = f"more than {self._limit} values, most of them read at many indices"
            raise Refused("evaluations", why, lasts=True)


def _most(group: Group) -> int:
    """A single member has no smaller kernels; its views are few (`planning/materialisation.py`)."""
    if len(group.members) <= 1:
        return sys.maxsize
    seen: set[Node] = set()
    work = [write.value for write in group.writes]
    work += group.members
    while work:
        node = work.pop()
        if node not in seen:
            seen.add(node)
            work.extend(() if node in group.reads else node.inputs)
    return max(FEW_EVALUATIONS, EVALUATIONS_A_NODE * len(seen))
