"""The order of launches with the least peak memory. Takes launches in a legal order, gives them in
another.

The program order is a depth-first order from the results. Launches that only results depend on
(gradients of weights) come last, and all their operands stay alive until then. Launches that depend
on nothing (sums of arguments) come first, and their results stay alive until they are read.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from hemstitch.ir.graph import Node
from hemstitch.planning.clusters import Clustering
from hemstitch.planning.topological_order import Cluster

Launch = list[Cluster]


def in_less_memory(clustering: Clustering, launches: Sequence[Launch]) -> list[Launch]:
    """The order with the least peak memory of intermediates. Candidates: the program order; an
    order in which a launch that frees as many bytes as it needs runs as early as possible; and,
    from each of the two, one in which the other launches run as late as possible."""
    flow, program_order = _flow(clustering, launches), range(len(launches))
    early = _early(flow, program_order)
    orders = program_order, early, _late(flow, program_order), _late(flow, early)
    order = min(orders, key=flow.peak_bytes)
    return [launches[number] for number in order]


@dataclass(frozen=True, slots=True)
class _Flow:
    """Numbered launches: the predecessors of each, and the intermediates that it writes and reads.
    Arguments and results are always in memory and not counted."""

    before: list[set[int]]
    makes: list[list[Node]]
    reads: list[list[Node]]
    readers: dict[Node, int]  # how many launches
    bytes: dict[Node, int]

    def peak_bytes(self, order: Iterable[int]) -> int:
        """The most bytes of intermediates alive at once."""
        left, alive, most = dict(self.readers), 0, 0
        for number in order:
            alive += self.needs(number)
            most = max(most, alive)
            alive -= self.frees(number, left)
            self.run(number, left)
        return most

    def needs(self, number: int) -> int:
        return sum(self.bytes[value] for value in self.makes[number])

    def frees(self, number: int, left: dict[Node, int]) -> int:
        """Bytes of which this is the last reader. `left`: how many launches still read each
        value."""
        return sum(self.bytes[value] for value in self.reads[number] if left[value] == 1)

    def run(self, number: int, left: dict[Node, int]) -> None:
        for value in self.reads[number]:
            left[value] -= 1


def _flow(clustering: Clustering, launches: Sequence[Launch]) -> _Flow:
    work = clustering.work
    number_of = {cluster: n for n, launch in enumerate(launches) for cluster in launch}
    before = [
        {number_of[first] for cluster in launch for first in cluster.before} - {number}
        for number, launch in enumerate(launches)
    ]
    flow = _Flow(before, [[] for _ in launches], [[] for _ in launches], {}, {})
    results = {alias.tensor.node for alias in work.materialisation.outputs.values()}
    for value, readers in work.readers.items():
        makers = {number_of[clustering.cluster_of[vertex]] for vertex in work.producers(value)}
        others = {number_of[clustering.cluster_of[vertex]] for vertex in readers} - makers
        if makers and others and value not in results:
            flow.makes[min(makers)].append(value)
            for number in others:
                flow.reads[number].append(value)
            flow.readers[value] = len(others)
            flow.bytes[value] = work.bytes(value)
    return flow


def _early(flow: _Flow, order: Sequence[int]) -> list[int]:
    left = dict(flow.readers)
    return _listed(
        *(order, flow.before),
        lambda number: flow.needs(number) <= flow.frees(number, left),
        lambda number: flow.run(number, left),
    )


def _late(flow: _Flow, order: Sequence[int]) -> list[int]:
    """Backwards from the last launch: there, a launch allocates what it reads and frees what it
    writes."""
    after = _after(flow.before)
    there: set[Node] = set()

    def is_free(number: int) -> bool:
        more = sum(flow.bytes[value] for value in flow.reads[number] if value not in there)
        return more <= flow.needs(number)

    run = _listed(order[::-1], after, is_free, lambda number: there.update(flow.reads[number]))
    return run[::-1]


def _listed(
    order: Sequence[int],
    before: Sequence[Collection[int]],
    is_free: Callable[[int], bool],
    run: Callable[[int], None],
) -> list[int]:
    """List scheduling: of the ready launches, the first in `order` that `is_free`, else the
    first."""
    after = _after(before)
    place = {number: place for place, number in enumerate(order)}
    waiting = [len(earlier) for earlier in before]
    ready = [number for number in order if not waiting[number]]
    listed: list[int] = []
    while ready:
        number = next(filter(is_free, ready), ready[0])
        ready.remove(number)
        listed.append(number)
        run(number)
        for later in after[number]:
            waiting[later] -= 1
            if not waiting[later]:
                insort(ready, later, key=place.__getitem__)
    return listed


def _after(before: Sequence[Collection[int]]) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in before]
    for number, earlier in enumerate(before):
        for first in earlier:
            after[first].append(number)
    return after
