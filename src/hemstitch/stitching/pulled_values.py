"""Values are pulled: a value asks for its operands, views bend the index on the way down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from hemstitch.ir.calls import MatmulAxis, Within
from hemstitch.ir.dims import Dim, SymbolicDim, may_be_empty
from hemstitch.ir.failure import Failure
from hemstitch.ir.graph import Address, Node, Op
from hemstitch.ir.ops import OPS
from hemstitch.ir.types import DType, contiguous_strides
from hemstitch.kernel_ir.dependence import backward_slice
from hemstitch.kernel_ir.index import Axis, Computed, Index, linear
from hemstitch.kernel_ir.nodes import (
    AccumulateMatmul,
    Buffer,
    Check,
    Constant,
    Contract,
    Let,
    Load,
    Position,
    Random,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.stitching.buffers import Buffers, NestKey
from hemstitch.stitching.group import (
    INLINE,
    Group,
    addressed,
    factors,
    leaf_below,
    padded,
    parts,
    reductions_of,
)
from hemstitch.stitching.loop_scopes import LoopScope, Scopes
from hemstitch.stitching.loop_shapes import right_operand
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.schedule import Schedule
from hemstitch.stitching.view_indices import BENDING, Indices, through

CHEAP = 2  # flops an element of a product's operand that is made again where it could be loaded


class Values(Scopes, ABC):
    """Emits the statements that compute any node of a group at any index."""

    def __init__(self, group: Group, schedule: Schedule, buffers: Buffers, place: NestKey) -> None:
        super().__init__(schedule, place[0])
        self.group = group
        self.buffers = buffers
        self.place = place
        self.members = frozenset(group.members)
        self.reductions = reductions_of(group)
        # Left by loops before the present one: in row buffers (None), or in place of what will be
        # written there later (the buffer, and the address of the row's own elements).
        self.kept: dict[Node, tuple[Buffer, Index] | None] = {}

    @abstractmethod
    def reduced(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The name that holds a reduction's result."""

    def value(self, node: Node, indices: Indices, mask: str | None = None) -> str:
        """The name that holds `node` at `indices`, where `mask` holds."""
        key = (node, indices, mask)
        for scope in self.scopes:
            if key in scope.values:
                return scope.values[key]
        self.buffers.evaluations.add()
        name = self._make(node, indices, mask)
        self.scopes[self.level_of[name]].values[key] = name
        return name

    def _make(self, node: Node, indices: Indices, mask: str | None) -> str:
        leaf = leaf_below(self.group, node)
        if leaf is not None:
            tensor, strides, offset = leaf
            address = self._final(self.buffers.address(tensor, indices, strides, offset))
            return self._load(self.buffers.input(tensor), address, mask, tensor.may_be_nowhere)
        if self._is_kept(node, indices):
            return self._load(*self._kept_at(node, indices), mask)
        if node.op in INLINE:
            return self._inline(node, indices)
        if node in self.reductions:
            return self.reduced(node, indices, mask)
        special = _SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, indices, mask)
        assert node in self.members, f"{node.op} {node.type} is neither in memory nor a member"
        names = tuple(self.value(operand, indices, mask) for operand in node.inputs)
        return self._let(node.op, names, node.inputs[-1].type.dtype, node.type.dtype)

    def _is_kept(self, node: Node, indices: Indices) -> bool:
        if node not in self.kept:
            return False
        return self.kept[node] is None or indices == self._domain(node).indices

    def _kept_at(self, node: Node, indices: Indices) -> tuple[Buffer, Index]:
        place = self.kept[node]
        if place is not None:
            return place
        buffer = self.buffers.row(self.place, node, self._row_extent(node))
        return buffer, self._row_address(node, indices)

    def _bent(self, node: Node, indices: Indices, mask: str | None) -> str:
        return self.value(node.inputs[0], through(node, indices), mask)

    def _let(self, op: Op, operands: tuple[str, ...], source: DType, dtype: DType) -> str:
        name = self.buffers.name("v")
        level = max(self.level_of[operand] for operand in operands)
        return self._define(name, level, Let(name, op, operands, source, dtype))

    def _load(
        self, buffer: Buffer, address: Index, mask: str | None, may_be_nowhere: bool = False
    ) -> str:
        name = self.buffers.name("v")
        level = self._level(address)
        if mask is not None:
            level = max(level, self.level_of[mask])
        is_own = buffer.role in (Role.TASK, Role.OUTPUT) or self._is_filled_here(buffer)
        if is_own:  # what a row writes is read in that row
            level = max(level, 1)
        if buffer.size == 0 or may_be_nowhere:
            # The innermost loop never runs where the buffer is empty; outside it the load would.
            level = len(self.scopes) - 1
        if buffer.role is Role.INPUT:  # whose elements do not change
            known = self.scopes[level].loads.setdefault((buffer, address, mask), name)
            if known is not name:
                return known
        return self._define(name, level, Load(name, buffer, address, mask))

    def _is_filled_here(self, buffer: Buffer) -> bool:
        """It is read by other tasks too, but not only: this nest has written to it."""
        if buffer.role is not Role.SHARED:
            return False
        written = (s for scope in self.scopes for s in walk(scope.statements))
        return any(isinstance(s, Store) and s.buffer is buffer for s in written)

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
        found = self._indices_of(node, indices, source.shape, mask)
        return self.value(source, addressed(node, indices, found), mask)

    def _indices_of(
        self, node: Node, indices: Indices, shape: tuple[Dim, ...], mask: str | None
    ) -> list[Computed]:
        """The values of a node's index operands, within `shape`, by their place among inputs."""
        found = [Computed("", 0)]
        along = {a.operand: (d, a.failure) for a, d in zip(_addresses(node), shape) if a.operand}
        for operand, index in enumerate(node.inputs[1:], start=1):
            name = self.value(index, indices, mask)
            if index.type.dtype is not DType.I64:
                name = self._let(Op.CAST, (name,), index.type.dtype, DType.I64)
            extent, failure = along[operand]
            found.append(Computed(self._checked(name, extent, mask, failure), extent))
        return found

    def _dot(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The loop that adds a product up, where its columns are the lanes around it."""
        steps = self.schedule.unification.contracted[node].indices[0]
        (axis, _), *others = self._final(steps).terms
        if others:
            raise Refused("product", "what is added up does not lie along one axis")
        assert isinstance(axis, Axis)
        if mask is not None:
            raise Refused("product", "only a part of it is read", lasts=True)
        if node in self.buffers.products:
            raise Refused("product", "it would be added up twice")
        self.buffers.products.add(node)
        scope = LoopScope((axis,))
        self.scopes.append(scope)
        places = zip(node.inputs, factors(indices, steps))
        left, right = (self.value(operand, place) for operand, place in places)
        self.scopes.pop()
        source, name = node.inputs[0].type.dtype, self.buffers.name("dot")
        self._check_operands(scope.statements, left, right)
        contract = Contract(
            *(name, axis, tuple(scope.statements), left, right, source, node.type.dtype),
            self._wanted(node, indices, steps),
        )
        return self._define(name, len(self.scopes) - 1, contract)

    def _wanted(self, product: Node, indices: Indices, steps: Index) -> Index | None:
        """As in `Contract`, from what the graph says."""
        within = product.attr
        if not isinstance(within, Within):
            return None
        *_, row, column = indices
        places = {MatmulAxis.ROW: row, MatmulAxis.COLUMN: column, MatmulAxis.STEP: steps}
        low, high = (self._final(places[place]) for place in (within.low, within.high))
        wanted = (high + low.scaled(-1)).shifted(within.distance)
        return wanted if all(isinstance(axis, Axis) for axis, _ in wanted.terms) else None

    def _added_up(self, product: Node, accumulator: str) -> None:
        """The statement that adds a product up along the lanes around it."""
        value, unification = self.value, self.schedule.unification
        left = value(product.inputs[0], unification.operand[product].indices)
        operand, place = right_operand(product, unification)
        (axis,) = self._row_axes(product)
        lanes = self.scopes.pop()  # what is made for each lane is made for the product alone
        scope = LoopScope((*lanes.axes, axis))
        self.scopes.append(scope)
        right = value(operand, place)
        self.scopes[-1] = lanes
        body, source = tuple(scope.statements), operand.type.dtype
        self._check_operands(body, right, right)
        self._emit(AccumulateMatmul(accumulator, axis, body, left, right, source))

    def _check_operands(self, body: Sequence[Stmt], left: str, right: str) -> None:
        """Each tile of rows makes the right operand anew, each block of columns the left one."""
        counts = {right: CHEAP} | ({left: CHEAP} if self.mapping.split else {})
        for name, most in counts.items():
            made = (s for s in backward_slice(name, body) if isinstance(s, Let))
            if sum(OPS[let.op].flops for let in made) > most:
                raise Refused("product", "an operand costs more to make again than to load")

    def _checked(self, name: str, extent: Dim, mask: str | None, failure: Failure) -> str:
        """The index `name`, made safe to use; the launch fails if it had to be."""
        zero = self._constant(0, DType.I64)
        last = self._position(Index((), extent - 1))
        lower = self._let(Op.MAXIMUM, (name, zero), DType.I64, DType.I64)
        safe = self._let(Op.MINIMUM, (lower, last), DType.I64, DType.I64)
        good = self._let(Op.EQ, (name, safe), DType.I64, DType.BOOL)
        self._fail_unless(good, mask, failure, 0)
        return safe

    def _check(self, node: Node, indices: Indices, mask: str | None) -> str:
        condition, value = (self.value(operand, indices, mask) for operand in node.inputs)
        assert isinstance(node.attr, Failure)
        # Nothing fails in what is empty: the innermost loop never runs there.
        level = len(self.scopes) - 1 if any(map(may_be_empty, node.shape)) else 0
        self._fail_unless(condition, mask, node.attr, level)
        return value

    def _fail_unless(self, good: str, mask: str | None, failure: Failure, level: int) -> None:
        if mask is not None:
            outside = self._let(Op.NOT, (mask,), DType.BOOL, DType.BOOL)
            good = self._let(Op.OR, (good, outside), DType.BOOL, DType.BOOL)
        level = max(level, self.level_of[good])
        self.scopes[level].statements.append(Check(good, failure))


def _tuple(attr: object) -> tuple[object, ...]:
    assert isinstance(attr, tuple)
    return attr


def _addresses(node: Node) -> list[Address]:
    return [address for address in _tuple(node.attr) if isinstance(address, Address)]


_SPECIAL: Mapping[Op, Callable[[Values, Node, Indices, str | None], str]] = {
    **dict.fromkeys(BENDING, Values._bent),
    Op.PAD: Values._pad,
    Op.CONCAT: Values._concat,
    Op.GATHER: Values._gather,
    Op.DOT: Values._dot,
    Op.CHECK: Values._check,
}
