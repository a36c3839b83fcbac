"""Applies rewrite rules to a graph in one sweep, producers first, until no rule fires."""

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
    """A rewrite of nodes with one of `ops`. `function` returns None where it does not apply.

    The replacement has the node's type, and equals the node as far as `exactness` says.
    """

    ops: frozenset[Op]
    function: Rewrite
    exactness: Exactness = EXACT

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def text(self) -> str:
        """The docstring of the function, which states the rule."""
        return self.function.__doc__ or ""


def rule(*ops: Op, exactness: Exactness = EXACT) -> Callable[[Rewrite], Rule]:
    """Declares the ops that a rewrite applies to. The docstring of the function states the rule."""
    return lambda function: Rule(frozenset(ops), function, exactness)


def rewrite(graph: Graph, rules: Iterable[Rule], builder: Builder) -> Graph:
    """`graph` with every rule applied until none fires, also to the replacements.

    An unchanged node, or an unchanged graph, stays the same object. A replacement inherits the
    origin of the node that it replaces. Raises InternalError for rules that do not terminate.
    """
    origin = builder.origin
    sweep = _RewriteSweep(_by_op(rules), builder, graph.origins)
    try:
        sweep.settle(graph.roots)
    finally:
        builder.origin = origin
    return sweep.rewritten(graph)


def substitute(graph: Graph, replacements: Mapping[Node, Node], builder: Builder) -> Graph:
    """`graph` with the keys of `replacements` replaced by their values."""
    sweep = _RewriteSweep({}, builder, graph.origins, dict(replacements))
    sweep.settle(graph.roots)
    return sweep.rewritten(graph)


def _by_op(rules: Iterable[Rule]) -> dict[Op, list[Rule]]:
    table: dict[Op, list[Rule]] = {}
    for rule in rules:
        for op in rule.ops:
            table.setdefault(op, []).append(rule)
    return table


@dataclass
class _RewriteSweep:
    """`settled`: the final form of each finished node; a final form maps to itself. `successor`:
    the first replacement of a node, which may be rewritten further."""

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
                stack.extend(self._unsettled(node))
            if len(self.successor) > limit:
                raise InternalError(f"the rules never come to an end at {describe(node)}")

    def _unsettled(self, node: Node) -> list[Node]:
        """The nodes to settle before `node`; empty once `node` is settled."""
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
        """`node` on its settled operands, or what the first matching rule gives, or itself."""
        self.builder.origin = self.origins.get(node) or self.builder.origins.get(node)
        inputs = tuple(self.settled[operand] for operand in node.inputs)
        if any(new is not old for new, old in zip(inputs, node.inputs)):
            return self.builder.make(node.op, *inputs, attr=node.attr, type=node.type)
        for rule in self.rules.get(node.op, ()):
            replacement = self._applied(rule, node)
            if replacement is None or replacement is node:
                continue
            if replacement.type != node.type:
                raise InternalError(
                    f"{rule.name} changed the type of {describe(node)} to {replacement.type}"
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
            problem = f"{rule.name} failed at {describe(node)}: {error!r}"
            raise InternalError(problem, where=where) from error

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
