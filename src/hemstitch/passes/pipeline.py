"""All passes over the graph IR, in order. Takes a graph as captured, gives one that is ready for
fusion: it means the same, has no work in it that can be done now or once, and views lie where
planning wants them."""

from __future__ import annotations

from collections.abc import Callable

from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph
from hemstitch.ir.verify import verify
from hemstitch.passes.algebra import ALGEBRA
from hemstitch.passes.cleanup import cleanup
from hemstitch.passes.engine import rewrite
from hemstitch.passes.fold import FOLD
from hemstitch.passes.gathered import gathered
from hemstitch.passes.layout import LAYOUT, slicing
from hemstitch.passes.logic import LOGIC
from hemstitch.passes.reassociate import REASSOCIATE, common_factor

Stage = Callable[[Graph, Builder], Graph]
SIMPLIFY = (*FOLD, *ALGEBRA, *LOGIC)
ARRANGE = (*SIMPLIFY, *LAYOUT)


def simplify(graph: Graph, builder: Builder) -> Graph:
    return rewrite(graph, SIMPLIFY, builder)


def arrange(graph: Graph, builder: Builder) -> Graph:
    """After a slice has moved, more values have one reader, so it is tried again."""
    before = None
    while graph is not before:
        before, graph = graph, rewrite(graph, (*ARRANGE, slicing(graph)), builder)
    return graph


def reassociate(graph: Graph, builder: Builder) -> Graph:
    return rewrite(graph, (*REASSOCIATE, common_factor(graph), *ARRANGE), builder)


STAGES: dict[str, Stage] = {
    "simplified": simplify,  # first: constants show which branches and axes matter
    "arranged": arrange,
    "cleaned": cleanup,
    "gathered": gathered,  # behind all that makes two operands the same
    "arranged again": arrange,  # what became one node has become x - x, max(x, x), ...
}


# By option, before the last stage, which finds what they leave.
INEXACT: dict[str, Stage] = {"reassociated": reassociate}


def stages(is_exact: bool) -> dict[str, Stage]:
    if is_exact:
        return STAGES
    *first, last = STAGES.items()
    return dict([*first, *INEXACT.items(), last])


def optimize(
    graph: Graph, builder: Builder, *, check: bool = False, is_exact: bool = True
) -> Graph:
    """`graph` through all stages; with `check` every stage's result is verified. `is_exact`: only
    what changes no value."""
    if check:
        verify(graph)
    for stage in stages(is_exact).values():
        graph = stage(graph, builder)
        if check:
            verify(graph)
    return graph
