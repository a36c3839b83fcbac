"""One nest: statements for the rows of one mapping in one phase.

Values are pulled: a root asks for its value at its loop's index, that asks for its operands, views
bend the index on the way down, and each statement lands in the outermost loop that knows its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hemstitch.ir.dims import Dim, SymbolicDim, product
from hemstitch.ir.graph import Address, Node, Op
from hemstitch.ir.ops import highest, identity, is_reduction
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel.index import Axis, Computed, Index, Variable, at, linear
from hemstitch.kernel.nodes import (
    TASK,
    THREADS,
    Accumulate,
    AccumulateInto,
    Buffer,
    Check,
    Constant,
    Finish,
    Init,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Random,
    Role,
    Stmt,
    Store,
)
from hemstitch.stitch.axes import Natural
from hemstitch.stitch.buffers import Buffers
from hemstitch.stitch.group import (
    INLINE,
    Group,
    Root,
    computed_below,
    gathered,
    leaf_below,
    operands,
    padded,
    parts,
)
from hemstitch.stitch.keep import kept_values
from hemstitch.stitch.mapping import natural_of
from hemstitch.stitch.refusal import Refused
from hemstitch.stitch.schedule import Schedule, Scheme
from hemstitch.stitch.views import BENDING, Indices, through

ARG = (Op.ARGMAX, Op.ARGMIN)
Key = tuple[Node, Indices, str | None]


@dataclass(slots=True)
class _Scope:
    """One loop level while it is being filled; level 0 is the prologue, level 1 the row."""

    axes: tuple[Axis, ...]
    statements: list[Stmt] = field(default_factory=list)
    values: dict[Key, str] = field(default_factory=dict)


class NestBuilder:
    """Builds the nest of `roots`, which share a mapping and a phase."""

    def __init__(
        self, group: Group, schedule: Schedule, buffers: Buffers, nest: int, phase: int
    ) -> None:
        self.group = group
        self.schedule = schedule
        self.buffers = buffers
        self.mapping = schedule.mappings[nest]
        self.place = (nest, phase)
        self.roots = schedule.at(nest, phase)
        self.members = frozenset(group.members)
        self.scopes = [_Scope((TASK,)), _Scope(self.mapping.rows)]
        self.level_of: dict[str, int] = {}
        self.accumulators: dict[Node, str] = {}
        self.kept: set[Node] = set()  # in row buffers, by loops before the present one

    def build(self) -> Nest:
        stages = sorted({self.schedule.places[root].stage for root in self.roots})
        loops = [loop for stage in stages for loop in self._loops_of(stage)]
        keep = self._plan_kept(loops)
        for position, (order, found) in enumerate(loops):
            self._clear_accumulators(order, found)
            self._open_loops(order, found, keep.get(position, []))
        weight = sum((product(a.extent for a in order) for order, _ in loops), start=_zero())
        return Nest(
            self.mapping.rows,
            tuple(self.scopes[0].statements),
            tuple(self.scopes[1].statements),
            weight,
            self._why(),
        )

    def _plan_kept(
        self, loops: Sequence[tuple[tuple[Axis, ...], list[Root]]]
    ) -> dict[int, list[Node]]:
        """For each loop, the values it must leave in row buffers; none if they would not fit."""
        evaluated: list[set[Node]] = [
            set().union(*(computed_below(root.value, self.members) for root in roots))
            for _, roots in loops
        ]
        first: dict[Node, int] = {}
        for position, ((order, _), nodes) in enumerate(zip(loops, evaluated)):
            for node in nodes:
                if order and set(order) == set(self._row_axes(node)):
                    first.setdefault(node, position)
        kept = kept_values(self.group, evaluated, first)
        extents = (self.group.hint(self._row_extent(node)) for node in kept)
        if 4 * sum(extents) > self.buffers.row_budget:
            return {}
        found: dict[int, list[Node]] = {}
        for node in kept:
            found.setdefault(first[node], []).append(node)
        return found

    def _why(self) -> str:
        rows = " x ".join(f"{axis}[{axis.extent}]" for axis in self.mapping.rows) or "one row"
        return f"rows {rows}"

    # --- loops

    def _loops_of(self, stage: int) -> list[tuple[tuple[Axis, ...], list[Root]]]:
        """The loop nests of one stage: roots with the same inner axes share one."""
        found: dict[tuple[Axis, ...], list[Root]] = {}
        for root in self.roots:
            if self.schedule.places[root].stage == stage:
                found.setdefault(self._inner(self.schedule.shapes[root].axes), []).append(root)
        return list(found.items())

    def _inner(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return self.mapping.inner(self.mapping.placed(axes))

    def _open_loops(
        self, order: tuple[Axis, ...], roots: list[Root], keep: list[Node], depth: int = 0
    ) -> None:
        finishing = [
            root
            for root in roots
            if root.reduction is not None and self._depth(order, root) == depth < len(order)
        ]
        for root in finishing:
            self._init(root)
        if depth == len(order):
            self._body(order, roots, keep)
        else:
            axis = order[depth]
            with self._scope(axis, lanes=depth == len(order) - 1):
                self._open_loops(order, roots, keep, depth + 1)
        for root in finishing:
            self._finish(order, root)

    @contextmanager
    def _scope(self, axis: Axis, lanes: bool) -> Iterator[None]:
        self.scopes.append(_Scope((axis,)))
        yield
        body = self.scopes.pop().statements
        self.scopes[-1].statements.append(Loop(axis, tuple(body), lanes))

    def _depth(self, order: tuple[Axis, ...], root: Root) -> int:
        """How many of the loops a reduction's accumulator is outside of."""
        reduced = set(self.mapping.placed(self.schedule.shapes[root].reduced))
        depth = len(order)
        while depth and order[depth - 1] in reduced:
            depth -= 1
        return depth

    def _body(self, order: tuple[Axis, ...], roots: list[Root], keep: list[Node]) -> None:
        for node, indices in self._evaluation_order(roots):
            self.value(node, indices)
        for node in keep:
            name = self.value(node, self._natural(node).indices)
            buffer = self.buffers.row(self.place, node, self._row_extent(node))
            self._emit(Store(buffer, self._row_address(node, self._natural(node).indices), name))
        for root in roots:
            natural = natural_of(root, self.schedule.unification)
            name = self.value(root.value, natural.indices)
            if root.write is not None:
                address = linear(natural.indices, root.write.strides).shifted(root.write.offset)
                self._emit(
                    Store(self.buffers.output(root.write.tensor), self._final(address), name)
                )
            elif self._depth(order, root) < len(order):
                self._accumulate(root, natural, name)
            else:
                assert root.reduction is not None
                self._result(order, root, name, self._arg_order(root, natural))
        self.kept |= set(keep)

    def _evaluation_order(self, roots: list[Root]) -> list[tuple[Node, Indices]]:
        """Members and where they are evaluated, operands first, so that `value` never recurses
        deeply. What is read under a condition is left to it."""
        order: list[tuple[Node, Indices]] = []
        seen: set[tuple[Node, Indices]] = set()
        work = [
            (root.value, natural_of(root, self.schedule.unification).indices, False)
            for root in reversed(roots)
        ]
        while work:
            node, indices, done = work.pop()
            if done:
                order.append((node, indices))
                continue
            if (node, indices) in seen or leaf_below(self.group, node) is not None:
                continue
            seen.add((node, indices))
            if node in self.members:
                if is_reduction(node.op) or node in self.kept:
                    continue
                work.append((node, indices, True))
                if node.op is not Op.GATHER:
                    work.extend((x, i, False) for x, i in operands(node, indices))
            elif node.op in BENDING:
                work.extend((x, i, False) for x, i in operands(node, indices))
        return order

    # --- reductions

    def _init(self, root: Root) -> None:
        node = root.reduction
        assert node is not None
        name = self.accumulators[node] = self.buffers.name("acc")
        self._emit(Init(name, node.op, node.inputs[0].type.dtype.compute, across=True))

    def _accumulate(self, root: Root, natural: Natural, value: str) -> None:
        node = root.reduction
        assert node is not None
        position = self._arg_position(node, natural) if node.op in ARG else None
        self._emit(Accumulate(self.accumulators[node], value, position))

    def _arg_position(self, node: Node, natural: Natural) -> Index:
        """The index within the reduced axes, flattened."""
        axes = [axis for axis in _tuple(node.attr) if isinstance(axis, int)]
        sizes = tuple(node.inputs[0].shape[axis] for axis in axes)
        found = [natural.indices[axis] for axis in axes]
        return self._final(linear(found, contiguous_strides(sizes)))

    def _arg_order(self, root: Root, natural: Natural) -> str | None:
        node = root.reduction
        if node is None or node.op not in ARG:
            return None
        name = self.buffers.name("at")
        self._emit(Position(name, self._arg_position(node, natural)))
        self.level_of[name] = len(self.scopes) - 1
        return name

    def _finish(self, order: tuple[Axis, ...], root: Root) -> None:
        node = root.reduction
        assert node is not None
        name = self.buffers.name("r")
        position = self.buffers.name("at") if node.op in ARG else None
        self._emit(Finish(name, self.accumulators[node], position))
        self.level_of |= {n: len(self.scopes) - 1 for n in (name, position) if n is not None}
        self._result(order, root, name, position)

    def _result(self, order: tuple[Axis, ...], root: Root, name: str, position: str | None) -> None:
        """The loops so far have reduced to this value: keep it where its readers look for it."""
        node = root.reduction
        assert node is not None
        indices = self._natural(node).indices
        target = self._memory_accumulator(order, root)
        if target is not None:
            buffer, positions, address = target
            dtype = node.inputs[0].type.dtype.compute
            self._emit(AccumulateInto(buffer, address, node.op, dtype, name, positions, position))
            return
        result = position if position is not None else name
        self.scopes[-1].values[node, indices, None] = result
        self.level_of.setdefault(result, len(self.scopes) - 1)
        if self.schedule.schemes[node] is Scheme.SHARED:
            address = self._final(linear(indices, contiguous_strides(node.shape)))
            self._emit(Store(self.buffers.shared(node), address, result))
        if self._row_axes(node):
            buffer = self.buffers.row(self.place, node, self._row_extent(node))
            self._emit(Store(buffer, self._row_address(node, indices), result))

    def _memory_accumulator(
        self, order: tuple[Axis, ...], root: Root
    ) -> tuple[Buffer, Buffer | None, Index] | None:
        """Where a reduction gathers what its innermost loops give, if outer loops reduce too:
        (values, positions of ARGMAX, address)."""
        node = root.reduction
        assert node is not None
        reduced = set(self.mapping.placed(self.schedule.shapes[root].reduced))
        if not reduced & {*order[: self._depth(order, root)], *self.mapping.rows}:
            return None
        indices = self._natural(node).indices
        flat = linear(indices, contiguous_strides(node.shape))
        match self.schedule.schemes[node]:
            case Scheme.PARTIAL:
                address = self._final(flat) + at(TASK).scaled(node.type.size)
                return (*self.buffers.partial(node), address)
            case Scheme.SHARED:
                return (*self.buffers.shared_accumulator(node), self._final(flat))
            case Scheme.REGIONAL:
                extent = self._row_extent(node)
                found = self.buffers.row_accumulator(self.place, node, extent)
                return (*found, self._row_address(node, indices))

    def _clear_accumulators(self, order: tuple[Axis, ...], roots: list[Root]) -> None:
        """Set the accumulators in memory that this loop adds to, to the reduction's identity."""
        for root in roots:
            node = root.reduction
            target = None if node is None else self._memory_accumulator(order, root)
            if node is None or target is None:
                continue
            if self.schedule.schemes[node] is Scheme.PARTIAL:
                axis = Axis(self.buffers.name("k"), node.type.size)
                start = at(TASK).scaled(node.type.size)
                self._fill(0, (axis,), target, node, at(axis) + start)
            else:
                self._fill(1, self._row_axes(node), target, node, target[2])

    def _fill(
        self,
        level: int,
        axes: tuple[Axis, ...],
        target: tuple[Buffer, Buffer | None, Index],
        node: Node,
        address: Index,
    ) -> None:
        dtype = node.inputs[0].type.dtype.compute
        name, nowhere = self.buffers.name("zero"), self.buffers.name("nowhere")
        buffer, positions, _ = target
        body: list[Stmt] = [
            Constant(name, identity(node.op, dtype), dtype),
            Store(buffer, address, name),
        ]
        if positions is not None:
            last = Constant(nowhere, highest(DType.I64), DType.I64)
            body += [last, Store(positions, address, nowhere)]
        for depth, axis in enumerate(reversed(axes)):
            body = [Loop(axis, tuple(body), lanes=depth == 0)]
        self.scopes[level].statements.extend(body)

    def _reduced(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The result of a reduction, from wherever its scheme left it."""
        scheme = self.schedule.schemes[node]
        if scheme is Scheme.PARTIAL:
            return self._combined(node, indices, mask)
        made = self.schedule.places[self.schedule.root_of[node]]
        if (made.nest, made.phase) != self.place:
            address = self._final(linear(indices, contiguous_strides(node.shape)))
            return self._load(self.buffers.shared(node), address, mask)
        if indices == self._natural(node).indices and mask is not None:
            return self.value(node, indices)
        if not self._row_axes(node):
            raise Refused("row", "a row's result is read from another row")
        buffer = self.buffers.row(self.place, node, self._row_extent(node))
        return self._load(buffer, self._row_address(node, indices), mask)

    def _combined(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The tasks' partial results as one: on the spot where each element is read once and
        certain to exist, else beforehand, all of them, into memory of the task."""
        rows = set(self.mapping.rows)
        natural = self._natural(node)
        kept = set(self.mapping.placed(self.schedule.folding.axes(natural.axes)))
        address = self._final(linear(indices, contiguous_strides(node.shape)))
        if node.type.size == 1 or (rows and rows <= kept and mask is None):
            level = self._level(address)
            name, statements = self._combine(node, address)
            self.scopes[level].statements.extend(statements)
            self.level_of[name] = level
            return name
        buffer, is_new = self.buffers.combined(self.place, node)
        if is_new:
            axis = Axis(self.buffers.name("k"), node.type.size)
            name, statements = self._combine(node, at(axis))
            body = (*statements, Store(buffer, at(axis), name))
            self.scopes[0].statements.append(Loop(axis, body, lanes=True))
        return self._load(buffer, address, mask)

    def _combine(self, node: Node, address: Index) -> tuple[str, list[Stmt]]:
        new = self.buffers.name
        buffer, positions = self.buffers.partial(node)
        part = Axis(new("t"), THREADS)
        place = address + at(part).scaled(node.type.size)
        accumulator, value, name = new("acc"), new("part"), new("r")
        loads: list[Stmt] = [Load(value, buffer, place)]
        order = position = None
        if positions is not None:
            order, position = new("at"), new("at")
            loads.append(Load(order, positions, place))
        dtype = node.inputs[0].type.dtype.compute
        statements: list[Stmt] = [
            Init(accumulator, node.op, dtype, across=False),
            Loop(part, (*loads, Accumulate(accumulator, value, order=order)), lanes=False),
            Finish(name, accumulator, position),
        ]
        return (position or name), statements

    # --- row buffers

    def _natural(self, node: Node) -> Natural:
        return self.schedule.unification.natural[node]

    def _row_axes(self, node: Node) -> tuple[Axis, ...]:
        return self._inner(self.schedule.folding.axes(self._natural(node).axes))

    def _row_extent(self, node: Node) -> Dim:
        return product(axis.extent for axis in self._row_axes(node))

    def _row_address(self, node: Node, indices: Indices) -> Index:
        """Where element `indices` of `node` is in the row's buffer, laid out in loop order."""
        axes = self._row_axes(node)
        steps = dict(zip(axes, contiguous_strides(tuple(axis.extent for axis in axes))))
        own = self._natural(node).indices
        if own == indices:
            return linear((at(axis) for axis in axes), steps.values())
        total = Index()
        for ours, wanted in zip(own, indices):
            total += self._row_offset(self._final(ours), self._final(wanted), steps)
        if any(variable in self.mapping.rows for variable, _ in total.terms):
            raise Refused("row buffer", "a value of one row is read in another")
        return total

    def _row_offset(self, own: Index, wanted: Index, steps: dict[Axis, Dim]) -> Index:
        """One tensor axis' contribution to an address in a row buffer."""
        inside = {v: c for v, c in own.terms if isinstance(v, Axis) and v in steps}
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

    # --- values

    def value(self, node: Node, indices: Indices, mask: str | None = None) -> str:
        """The name that holds `node` at `indices`, where `mask` holds."""
        key = (node, indices, mask)
        for scope in self.scopes:
            if key in scope.values:
                return scope.values[key]
        name = self._make(node, indices, mask)
        self.scopes[self.level_of[name]].values[key] = name
        return name

    def _make(self, node: Node, indices: Indices, mask: str | None) -> str:
        leaf = leaf_below(self.group, node)
        if leaf is not None:
            tensor, strides, offset = leaf
            address = self._final(linear(indices, strides).shifted(offset))
            return self._load(self.buffers.input(tensor), address, mask)
        if node in self.kept:
            buffer = self.buffers.row(self.place, node, self._row_extent(node))
            return self._load(buffer, self._row_address(node, indices), mask)
        if node.op in BENDING:
            return self.value(node.inputs[0], through(node, indices), mask)
        if node.op in INLINE:
            return self._inline(node, indices)
        match node.op:
            case Op.PAD:
                return self._pad(node, indices, mask)
            case Op.CONCAT:
                return self._concat(node, indices, mask)
            case Op.GATHER:
                return self._gather(node, indices, mask)
        assert node in self.members, f"{node.op} {node.type} is neither in memory nor a member"
        if is_reduction(node.op):
            return self._reduced(node, indices, mask)
        names = tuple(self.value(operand, indices, mask) for operand in node.inputs)
        return self._let(node.op, names, node.inputs[-1].type.dtype, node.type.dtype)

    def _let(self, op: Op, operands: tuple[str, ...], source: DType, dtype: DType) -> str:
        name = self.buffers.name("v")
        level = max(self.level_of[operand] for operand in operands)
        return self._define(name, level, Let(name, op, operands, source, dtype))

    def _define(self, name: str, level: int, statement: Stmt) -> str:
        self.level_of[name] = level
        self.scopes[level].statements.append(statement)
        return name

    def _load(self, buffer: Buffer, address: Index, mask: str | None) -> str:
        name = self.buffers.name("v")
        level = self._level(address)
        if mask is not None:
            level = max(level, self.level_of[mask])
        if buffer.role in (Role.TASK, Role.OUTPUT):  # what a row writes is read in that row
            level = max(level, 1)
        return self._define(name, level, Load(name, buffer, address, mask))

    def _constant(self, value: bool | int | float, dtype: DType) -> str:
        name = self.buffers.name("c")
        return self._define(name, 0, Constant(name, value, dtype))

    def _position(self, index: Index) -> str:
        final = self._final(index)
        name = self.buffers.name("i")
        return self._define(name, self._level(final), Position(name, final))

    def _inline(self, node: Node, indices: Indices) -> str:
        match node.op:
            case Op.CONSTANT:
                assert isinstance(node.attr, bool | int | float)
                return self._constant(node.attr, node.type.dtype)
            case Op.SIZE:
                assert isinstance(node.attr, int | SymbolicDim)
                return self._position(Index((), node.attr))
            case Op.IOTA:
                assert isinstance(node.attr, int)
                return self._position(indices[node.attr])
            case _:
                seed = self.value(node.inputs[0], ())
                index = self._final(linear(indices, contiguous_strides(node.shape)))
                name = self.buffers.name("u")
                return self._define(name, self._level(index), Random(name, seed, index))

    # --- conditions

    def _compare(self, op: Op, index: Index, bound: Dim) -> str:
        limit = self._position(Index((), bound))
        return self._let(op, (self._position(index), limit), DType.I64, DType.BOOL)

    def _both(self, *conditions: str | None) -> str | None:
        found: str | None = None
        for condition in conditions:
            if condition is not None and found is not None:
                found = self._let(Op.AND, (found, condition), DType.BOOL, DType.BOOL)
            else:
                found = condition or found
        return found

    def _pad(self, node: Node, indices: Indices, mask: str | None) -> str:
        source, fill = node.inputs
        inside: str | None = None
        lows = [low for low in _tuple(node.attr) if isinstance(low, int)]
        for index, low, size, wide in zip(indices, lows, source.shape, node.shape):
            above = self._compare(Op.GE, index, low) if low else None
            below = self._compare(Op.LT, index, size + low) if size + low != wide else None
            inside = self._both(inside, above, below)
        assert inside is not None
        value = self.value(source, padded(node, indices), self._both(mask, inside))
        other = self.value(fill, ())
        return self._let(Op.WHERE, (inside, value, other), node.type.dtype, node.type.dtype)

    def _concat(self, node: Node, indices: Indices, mask: str | None) -> str:
        axis, dtype = node.attr, node.type.dtype
        assert isinstance(axis, int)
        places = parts(node, indices)
        result: str | None = None
        for number in reversed(range(len(places))):
            part, inside = node.inputs[number], places[number]
            above = self._compare(Op.GE, inside[axis], 0) if number else None
            below = None if result is None else self._compare(Op.LT, inside[axis], part.shape[axis])
            value = self.value(part, inside, self._both(mask, above, below))
            if result is None or below is None:
                result = value
            else:
                result = self._let(Op.WHERE, (below, value, result), dtype, dtype)
        assert result is not None
        return result

    def _gather(self, node: Node, indices: Indices, mask: str | None) -> str:
        source = node.inputs[0]
        found = [Computed("", 0)]
        extents = {a.operand: d for a, d in zip(_addresses(node), source.shape) if a.operand}
        for operand, index in enumerate(node.inputs[1:], start=1):
            name = self.value(index, indices, mask)
            if index.type.dtype is not DType.I64:
                name = self._let(Op.CAST, (name,), index.type.dtype, DType.I64)
            found.append(Computed(self._checked(name, extents[operand], mask), extents[operand]))
        return self.value(source, gathered(node, indices, found), mask)

    def _checked(self, name: str, extent: Dim, mask: str | None) -> str:
        """The index `name`, made safe to use; the launch fails if it had to be."""
        zero = self._constant(0, DType.I64)
        last = self._position(Index((), extent - 1))
        lower = self._let(Op.MAXIMUM, (name, zero), DType.I64, DType.I64)
        safe = self._let(Op.MINIMUM, (lower, last), DType.I64, DType.I64)
        good = self._let(Op.EQ, (name, safe), DType.I64, DType.BOOL)
        if mask is not None:
            outside = self._let(Op.NOT, (mask,), DType.BOOL, DType.BOOL)
            good = self._let(Op.OR, (good, outside), DType.BOOL, DType.BOOL)
        self.scopes[self.level_of[good]].statements.append(Check(good, "index out of range"))
        return safe

    # --- where statements go

    def _emit(self, statement: Stmt) -> None:
        self.scopes[-1].statements.append(statement)

    def _final(self, index: Index) -> Index:
        """In terms of the axes that are looped over."""
        return self.schedule.folding.index(index).substitute(self.mapping.split)

    def _level(self, index: Index) -> int:
        """The outermost scope that knows every variable of `index`."""
        return max((self._level_of_variable(v) for v, _ in index.terms), default=0)

    def _level_of_variable(self, variable: Variable) -> int:
        if isinstance(variable, Computed):
            return self.level_of[variable.name]
        for level, scope in enumerate(self.scopes):
            if variable in scope.axes:
                return level
        raise Refused("axes", f"a value is needed for every {variable} outside that loop")


def _tuple(attr: object) -> tuple[object, ...]:
    assert isinstance(attr, tuple)
    return attr


def _addresses(node: Node) -> list[Address]:
    return [address for address in _tuple(node.attr) if isinstance(address, Address)]


def _zero() -> Dim:
    return 0
