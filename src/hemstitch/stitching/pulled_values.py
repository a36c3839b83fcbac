"""Code generation by demand: a value requests its operands; views transform the index on the way
down."""

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
    concat_indices,
    dot_indices,
    gathered_indices,
    leaf_below,
    pad_indices,
    reductions_of,
)
from hemstitch.stitching.loop_scopes import LoopScope, Scopes
from hemstitch.stitching.loop_shapes import right_operand
from hemstitch.stitching.refusal import Refused
from hemstitch.stitching.schedule import Schedule
from hemstitch.stitching.view_indices import INDEX_VIEWS, Indices, source_indices

# In the units of `OpRow.flops`, per element of a matmul operand that is recomputed for each tile.
MAX_OPERAND_FLOPS = 2


class Values(Scopes, ABC):
    """Emits the statements that compute any node of a group at any index."""

    def __init__(self, group: Group, schedule: Schedule, buffers: Buffers, place: NestKey) -> None:
        super().__init__(schedule, place[0])
        self.group = group
        self.buffers = buffers
        self.place = place
        self.members = frozenset(group.members)
        self.reductions = reductions_of(group)
        # Values that earlier loops retain: in row buffers (None), or in the memory of a result
        # (the buffer, and the address of the row's own elements).
        self.retained: dict[Node, tuple[Buffer, Index] | None] = {}

    @abstractmethod
    def reduced(self, node: Node, indices: Indices, mask: str | None) -> str:
        """The name of a reduction's result."""

    def value(self, node: Node, indices: Indices, mask: str | None = None) -> str:
        """The name of `node` at `indices`, where `mask` holds."""
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
            return self._load(self.buffers.input(tensor), address, mask, tensor.may_be_unallocated)
        if self._is_retained(node, indices):
            return self._load(*self._retained_at(node, indices), mask)
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

    def _is_retained(self, node: Node, indices: Indices) -> bool:
        if node not in self.retained:
            return False
        return self.retained[node] is None or indices == self._domain(node).indices

    def _retained_at(self, node: Node, indices: Indices) -> tuple[Buffer, Index]:
        place = self.retained[node]
        if place is not None:
            return place
        buffer = self.buffers.row(self.place, node, self._row_extent(node))
        return buffer, self._row_address(node, indices)

    def _view(self, node: Node, indices: Indices, mask: str | None) -> str:
        return self.value(node.inputs[0], source_indices(node, indices), mask)

    def _let(self, op: Op, operands: tuple[str, ...], source: DType, dtype: DType) -> str:
        name = self.buffers.name("v")
        level = max(self.level_of[operand] for operand in operands)
        return self._define(name, level, Let(name, op, operands, source, dtype))

    def _load(
        self, buffer: Buffer, address: Index, mask: str | None, may_be_unallocated: bool = False
    ) -> str:
        name = self.buffers.name("v")
        level = self._level(address)
        if mask is not None:
            level = max(level, self.level_of[mask])
        is_own = buffer.role in (Role.TASK, Role.OUTPUT) or self._is_filled_here(buffer)
        if is_own:  # a row reads what it has written
            level = max(level, 1)
        if buffer.size == 0 or may_be_unallocated:
            # If the buffer is empty, the innermost loop never runs; outside it the load would.
            level = len(self.scopes) - 1
        if buffer.role is Role.INPUT:  # read-only
            known = self.scopes[level].loads.setdefault((buffer, address, mask), name)
            if known is not name:
                return known
        return self._define(name, level, Load(name, buffer, address, mask))

    def _is_filled_here(self, buffer: Buffer) -> bool:
        """Whether this nest has written to a buffer that other tasks read too."""
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

    def _conjunction(self, *conditions: str | None) -> str | None:
        result: str | None = None
        for condition in conditions:
            if condition is not None and result is not None:
                result = self._let(Op.AND, (result, condition), DType.BOOL, DType.BOOL)
            else:
                result = condition or result
        return result

    def _pad(self, node: Node, indices: Indices, mask: str | None) -> str:
        source, fill = node.inputs
        inside: str | None = None
        lows = [low for low in _tuple(node.attr) if isinstance(low, int)]
        for index, low, size, wide in zip(indices, lows, source.shape, node.shape):
            above = self._compare(Op.GE, index, low) if low else None
            below = self._compare(Op.LT, index, size + low) if size + low != wide else None
            inside = self._conjunction(inside, above, below)
        assert inside is not None
        value = self.value(source, pad_indices(node, indices), self._conjunction(mask, inside))
        filling = self.value(fill, ())
        return self._let(Op.WHERE, (inside, value, filling), node.type.dtype, node.type.dtype)

    def _concat(self, node: Node, indices: Indices, mask: str | None) -> str:
        axis, dtype = node.attr, node.type.dtype
        assert isinstance(axis, int)
        places = concat_indices(node, indices)
        result: str | None = None
        for number in reversed(range(len(places))):
            part, inside = node.inputs[number], places[number]
            above = self._compare(Op.GE, inside[axis], 0) if number else None
            below = None if result is None else self._compare(Op.LT, inside[axis], part.shape[axis])
            value = self.value(part, inside, self._conjunction(mask, above, below))
            if result is None or below is None:
                result = value
            else:
                result = self._let(Op.WHERE, (below, value, result), dtype, dtype)
        assert result is not None
        return result

    def _gather(self, node: Node, indices: Indices, mask: str | None) -> str:
        source = node.inputs[0]
        values = self._indices_of(node, indices, source.shape, mask)
        return self.value(source, gathered_indices(node, indices, values), mask)

    def _indices_of(
        self, node: Node, indices: Indices, shape: tuple[Dim, ...], mask: str | None
    ) -> list[Computed]:
        """The values of a node's index operands, checked against `shape`, by input."""
        computed = [Computed("", 0)]
        bounds = {a.operand: (d, a.failure) for a, d in zip(_addresses(node), shape) if a.operand}
        for operand, index in enumerate(node.inputs[1:], start=1):
            name = self.value(index, indices, mask)
            if index.type.dtype is not DType.I64:
                name = self._let(Op.CAST, (name,), index.type.dtype, DType.I64)
            extent, failure = bounds[operand]
            computed.append(Computed(self._checked(name, extent, mask, failure), extent))
        return computed

    def _dot(self, node: Node, indices: Indices, mask: str | None) -> str:
        """A CONTRACT loop over K, in a lane loop over the matmul's columns."""
        steps = self.schedule.unification.contracted[node].indices[0]
        (axis, _), *other_terms = self._final(steps).terms
        if other_terms:
            raise Refused("matmul", "K is not a single axis")
        assert isinstance(axis, Axis)
        if mask is not None:
            raise Refused("matmul", "it is read under a mask", lasts=True)
        if node in self.buffers.matmuls:
            raise Refused("matmul", "it would be computed twice")
        self.buffers.matmuls.add(node)
        scope = LoopScope((axis,))
        self.scopes.append(scope)
        places = zip(node.inputs, dot_indices(indices, steps))
        left, right = (self.value(operand, place) for operand, place in places)
        self.scopes.pop()
        source, name = node.inputs[0].type.dtype, self.buffers.name("dot")
        self._check_operands(scope.statements, left, right)
        contract = Contract(
            *(name, axis, tuple(scope.statements), left, right, source, node.type.dtype),
            self._unmasked_range(node, indices, steps),
        )
        return self._define(name, len(self.scopes) - 1, contract)

    def _unmasked_range(self, matmul: Node, indices: Indices, steps: Index) -> Index | None:
        """`Contract.wanted`, from the band that the graph says is read."""
        within = matmul.attr
        if not isinstance(within, Within):
            return None
        *_, row, column = indices
        places = {MatmulAxis.ROW: row, MatmulAxis.COLUMN: column, MatmulAxis.STEP: steps}
        low, high = (self._final(places[place]) for place in (within.low, within.high))
        distance = (high + low.scaled(-1)).shifted(within.distance)
        return distance if all(isinstance(axis, Axis) for axis, _ in distance.terms) else None

    def _accumulate_matmul(self, matmul: Node, accumulator: str) -> None:
        """A matmul step in a lane loop over K."""
        value, unification = self.value, self.schedule.unification
        left = value(matmul.inputs[0], unification.operand[matmul].indices)
        operand, place = right_operand(matmul, unification)
        (axis,) = self._row_axes(matmul)
        lanes = self.scopes.pop()  # operands per lane belong to the matmul alone
        scope = LoopScope((*lanes.axes, axis))
        self.scopes.append(scope)
        right = value(operand, place)
        self.scopes[-1] = lanes
        body, source = tuple(scope.statements), operand.type.dtype
        self._check_operands(body, right, right)
        self._emit(AccumulateMatmul(accumulator, axis, body, left, right, source))

    def _check_operands(self, body: Sequence[Stmt], left: str, right: str) -> None:
        """Each tile of rows recomputes the right operand, each block of columns the left one."""
        limits = {right: MAX_OPERAND_FLOPS} | (
            {left: MAX_OPERAND_FLOPS} if self.mapping.split else {}
        )
        for name, limit in limits.items():
            lets = (s for s in backward_slice(name, body) if isinstance(s, Let))
            if sum(OPS[let.op].flops for let in lets) > limit:
                raise Refused("matmul", "an operand costs more to recompute than to load")

    def _checked(self, name: str, extent: Dim, mask: str | None, failure: Failure) -> str:
        """The index `name`, clamped to the extent; the launch fails if it was out of range."""
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
        # No check of an empty tensor fails: the innermost loop never runs.
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
    **dict.fromkeys(INDEX_VIEWS, Values._view),
    Op.PAD: Values._pad,
    Op.CONCAT: Values._concat,
    Op.GATHER: Values._gather,
    Op.DOT: Values._dot,
    Op.CHECK: Values._check,
}
