"""Applies rewrite rules to a graph: one sweep, producers first, until no rule fires anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hemstitch.errors import HemstitchError, InternalError
from hemstitch.exactness import EXACT, Exactness
from hemstitch.ir.builder import Builder
from hemstitch.ir.graph import Graph, Node, Op, Origin, toposort
from hemstitch.ir.printer import describe

Rewrite = Callable[[Builder, Node], "Node | None"]
STEPS_PER_NODE = 1000  # far above what rules that make progress need


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of the nodes of some ops; gives None where it does not apply.

    What it gives has the node's type, and means the same as far as `exactness` says.
    """

    ops: frozenset[Op]
    function: Rewrite
    exactness: Exactness = EXACT

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def text(self) -> str:
        """The rule as its docstring states it."""
        return self.function.__doc__ or ""


def rule(*ops: Op, exactness: Exactness = EXACT) -> Callable[[Rewrite], Rule]:
    """Says which ops a rewrite is for. Its docstring is the rule."""
    return lambda function: Rule(frozenset(ops), function, exactness)


def rewrite(graph: Graph, rules: Iterable[Rule], builder: Builder) -> Graph:
    """`graph` with every rule applied wherever it can be, also to what other rules gave.

    An untouched node stays the same object, an untouched graph too. A replacement comes from
    where the replaced node came from.
    """
    before = builder.origin
    sweep = _RewriteSweep(_by_op(rules), builder, graph.origins)
    try:
        sweep.settle(graph.roots)
    finally:
        builder.origin = before
    return sweep.rewritten(graph)


def substitute(graph: Graph, given: Mapping[Node, Node], builder: Builder) -> Graph:
    """`graph` with other nodes in the place of some."""
    sweep = _RewriteSweep({}, builder, graph.origins, dict(given))
    sweep.settle(graph.roots)
    return sweep.rewritten(graph)


def _by_op(rules: Iterable[Rule]) -> dict[Op, list[Rule]]:
    table: dict[Op, list[Rule]] = {}
    for each in rules:
        for op in each.ops:
            table.setdefault(op, []).append(each)
    return table


@dataclass
class _RewriteSweep:
    """`settled`: what each finished node became; a result is settled as itself.
    `successor`: the first step of a node's replacement, on the way to its final form."""

    rules: Mapping[Op, list[Rule]]
    builder: Builder
    origins: Mapping[Node, Origin]
    settled: dict[Node, Node] = field(default_factory=dict)
    successor: dict[Node, Node] = field(default_factory=dict)

    def settle(self, roots: Iterable[Node]) -> None:
        roots = tuple(roots)
        limit = STEPS_PER_NODE * (len(toposort(roots)) + 1)
        stack = list(reversed(roots))
        while stack:
            node = stack[-1]
            if node in self.settled:
                stack.pop()
            elif node in self.successor:
                self.settled[node] = self.settled[self.successor[node]]
            else:
                stack.extend(self._before(node))
            if len(self.successor) > limit:
                raise InternalError(f"the rules never come to an end at {describe(node)}")

    def _before(self, node: Node) -> list[Node]:
        """What must be settled first; nothing where `node` is settled now."""
        pending = [operand for operand in reversed(node.inputs) if operand not in self.settled]
        if not pending:
            replacement = self._step(node)
            if replacement is node:
                self.settled[node] = node
                return []
            self.successor[node] = replacement
            pending = [replacement]
        for awaited in pending:
            if awaited in self.successor and awaited not in self.settled:
                raise InternalError(f"the rules go in a circle at {describe(awaited)}")
        return pending

    def _step(self, node: Node) -> Node:
        """`node` on its settled operands, or what the first rule makes of it, or itself."""
        self.builder.origin = self.origins.get(node) or self.builder.origins.get(node)
        inputs = tuple(self.settled[operand] for operand in node.inputs)
        if any(new is not old for new, old in zip(inputs, node.inputs)):
            return self.builder.make(node.op, *inputs, attr=node.attr, type=node.type)
        for each in self.rules.get(node.op, ()):
            replacement = self._applied(each, node)
            if replacement is None or replacement is node:
                continue
            if replacement.type != node.type:
                raise InternalError(
                    f"{each.name} changed the type of {describe(node)} to {replacement.type}"
                )
            return replacement
        return node

    def _applied(self, rule: Rule, node: Node) -> Node | None:
        try:
            return rule.function(self.builder, node)
        except HemstitchError:
            raise
        except Exception as error:
            origin = self.builder.origin
            where = None if origin is None else origin.location
            what = f"{rule.name} failed at {describe(node)}: {error!r}"
            raise InternalError(what, where=where) from error

    def rewritten(self, graph: Graph) -> Graph:
        if all(self.settled[root] is root for root in graph.roots):
            return graph
        outputs = tuple(
            replace(output, value=self.settled[output.value]) for output in graph.outputs
        )
        effects = tuple(self.settled[node] for node in graph.effects)
        changed = replace(graph, outputs=outputs, effects=effects)
        known = {**self.builder.origins, **graph.origins}
        origins = {node: known[node] for node in toposort(changed.roots) if node in known}
        return replace(changed, origins=origins)
