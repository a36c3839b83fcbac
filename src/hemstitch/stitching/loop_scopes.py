"""The loop levels of a nest under construction: where statements go, and what indices mean there.

Level 0 runs once per task, level 1 once per row, each further level once per iteration of a loop. A
statement goes to the outermost level that defines everything it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, product
from hemstitch.ir.graph import Node
from hemstitch.ir.types import contiguous_strides
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, at, expand, linear
from hemstitch.kernel_ir.nodes import TASK, Buffer, Constant, Let, Loop, Position, Random, Stmt
from hemstitch.kernel_ir.passes.common_subexpressions import value_key
from hemstitch.stitching.dimension_unification import Domain
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.schedule import Schedule
from hemstitch.stitching.view_indices import Indices

Key = tuple[Node, Indices, str | None]  # a value: node, indices, mask


@dataclass(slots=True)
class LoopScope:
    """One loop level under construction. `values`: names of nodes by key. `pure`: names of
    load-free statements by content. `loads`: names of loads by address."""

    axes: tuple[Axis, ...]
    statements: list[Stmt] = field(default_factory=list)
    values: dict[Key, str] = field(default_factory=dict)
    pure: dict[object, str] = field(default_factory=dict)
    loads: dict[tuple[Buffer, Index, str | None], str] = field(default_factory=dict)


class Scopes:
    """The open loop levels of nest `nest`, and index arithmetic in its rows."""

    def __init__(self, schedule: Schedule, nest: int) -> None:
        self.schedule = schedule
        self.mapping = schedule.mappings[nest]
        self.scopes = [LoopScope((TASK,)), LoopScope(self.mapping.rows)]
        self.level_of: dict[str, int] = {}

    # --- levels

    @contextmanager
    def _scope(self, axis: Axis, lanes: bool) -> Iterator[None]:
        self.scopes.append(LoopScope((axis,)))
        yield
        body = self.scopes.pop().statements
        self.scopes[-1].statements.append(Loop(axis, tuple(body), lanes))

    def _emit(self, statement: Stmt) -> None:
        self.scopes[-1].statements.append(statement)

    def _define(self, name: str, level: int, statement: Stmt) -> str:
        """Adds `statement` at `level`. Returns the name of its value, or of an equal earlier
        statement's."""
        if isinstance(statement, (Let, Constant, Position, Random)):
            known = self.scopes[level].pure.setdefault(value_key(statement), name)
            if known is not name:
                return known
        self.level_of[name] = level
        self.scopes[level].statements.append(statement)
        return name

    def _final(self, index: Index) -> Index:
        """`index` in terms of the axes that are looped over."""
        return self.schedule.collapsed.index(expand(index)).substitute(self.mapping.split)

    def _level(self, index: Index) -> int:
        """The outermost scope that defines every variable of `index`."""
        return max((self._level_of_variable(v) for v, _ in index.terms), default=0)

    def _level_of_variable(self, variable: Variable) -> int:
        if isinstance(variable, Computed):
            return self.level_of[variable.name]
        for level, scope in enumerate(self.scopes):
            if variable in scope.axes:
                return level
        raise Refused("axes", f"a value is needed for every {variable} outside that loop")

    # --- row buffers

    def _domain(self, node: Node) -> Domain:
        return self.schedule.unification.domain[node]

    def _inner(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return self.mapping.inner(self.mapping.after_split(axes))

    def _row_axes(self, node: Node) -> tuple[Axis, ...]:
        return self._inner(self.schedule.collapsed.axes(self._domain(node).axes))

    def _row_extent(self, node: Node) -> Dim:
        return product(axis.extent for axis in self._row_axes(node))

    def _row_address(self, node: Node, indices: Indices) -> Index:
        """The position of element `indices` of `node` in its row buffer, which is laid out in loop
        order. Raises Refused for an element of another row."""
        axes = self._row_axes(node)
        steps = dict(zip(axes, contiguous_strides(tuple(axis.extent for axis in axes))))
        own = self._domain(node).indices
        # Axes that were collapsed into one loop are collapsed together only.
        same = [expand(ours) for ours, wanted in zip(own, indices) if ours == wanted]
        variables = dict.fromkeys(v for index in same for v, _ in index.terms)
        shared = self._inner(
            self.schedule.collapsed.axes(v for v in variables if isinstance(v, Axis))
        )
        total = linear((at(axis) for axis in shared), (steps[axis] for axis in shared))
        for ours, wanted in zip(own, indices):
            if ours != wanted:
                total += self._row_offset(self._final(ours), self._final(wanted), steps)
        if any(variable in self.mapping.rows for variable, _ in total.terms):
            raise Refused("row buffer", "a value of one row is read in another")
        return total

    def _row_offset(self, own: Index, wanted: Index, steps: dict[Axis, Dim]) -> Index:
        """The contribution of one tensor axis to an address in a row buffer."""
        inside = {v: c for v, c in own.terms if isinstance(v, Axis) and v in steps}
        if own != wanted and any(axis.outer is not None for axis in inside):
            raise Refused("row buffer", "a value of one block is read in another")
        outside = Index(tuple(term for term in own.terms if term[0] not in inside), own.constant)
        scale = next((steps[axis] for axis, count in inside.items() if count == 1), None)
        distance = wanted + outside.scaled(-1)
        if scale is None:
            if distance != Index():
                raise Refused("row buffer", "a value of one row is read in another")
            return distance
        if any(steps[axis] != scale * count for axis, count in inside.items()):
            raise Refused("row buffer", "an axis does not lie in one piece")
        return distance.scaled(scale)
