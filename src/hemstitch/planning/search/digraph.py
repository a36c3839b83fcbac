"""Algorithms on directed graphs that are given as the successors of 0, 1, 2, ..."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence


def topological(after: Sequence[Collection[int]], keys: Sequence[int]) -> list[int] | None:
    """Every vertex before its successors, otherwise by `keys`; None if there is a cycle."""
    waiting = [0] * len(after)
    for successors in after:
        for vertex in successors:
            waiting[vertex] += 1
    ready = [(keys[vertex], vertex) for vertex, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        vertex = heapq.heappop(ready)[1]
        order.append(vertex)
        for successor in after[vertex]:
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(ready, (keys[successor], successor))
    return order if len(order) == len(after) else None


def strongly_connected(after: Sequence[Collection[int]]) -> Iterator[list[int]]:
    """The strongly connected components, each before those that it leads to (Kosaraju 1978)."""
    before: list[list[int]] = [[] for _ in after]
    for vertex, successors in enumerate(after):
        for successor in successors:
            before[successor].append(vertex)
    seen: set[int] = set()
    for root in reversed(_postorder(after, range(len(after)), set())):
        component = _postorder(before, (root,), seen)
        if component:
            yield component


def _postorder(after: Sequence[Collection[int]], roots: Iterable[int], seen: set[int]) -> list[int]:
    """Depth-first postorder of the vertices that are not in `seen`; adds them to it."""
    order: list[int] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(after[root]))]
        while path:
            vertex, successors = path[-1]
            following = next((other for other in successors if other not in seen), None)
            if following is None:
                order.append(vertex)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(after[following])))
    return order


def cycles(after: Sequence[Collection[int]]) -> list[tuple[int, ...]]:
    """For each vertex on a cycle, one of its shortest cycles; without duplicates."""
    cycle_of: dict[frozenset[int], tuple[int, ...]] = {}
    for component in strongly_connected(after):
        if len(component) > 1:
            inside = set(component)
            for start in sorted(component):
                cycle = _shortest_cycle(after, start, inside)
                cycle_of.setdefault(frozenset(cycle), cycle)
    return list(cycle_of.values())


def _shortest_cycle(
    after: Sequence[Collection[int]], start: int, inside: Collection[int]
) -> tuple[int, ...]:
    """Breadth first from `start` back to itself, within its strongly connected component."""
    reached_from = {start: start}
    work = deque([start])
    while start not in after[work[0]]:
        vertex = work.popleft()
        for successor in sorted(after[vertex]):
            if successor in inside and successor not in reached_from:
                reached_from[successor] = vertex
                work.append(successor)
    cycle = [work[0]]
    while cycle[-1] != start:
        cycle.append(reached_from[cycle[-1]])
    return tuple(reversed(cycle))
