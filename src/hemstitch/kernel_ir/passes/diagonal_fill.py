"""Results that are one constant but for a diagonal: the result is filled, then the diagonal is
stored.

for i < 6: for j < 6:                       for k < 36:
    there = i == j + 1                          y[k] = 0
    y[6*i + j] = x[j] if there else 0       for k < 5:
                                                y[7*k + 6] = x[k]

A row fills what it stores. Where the diagonal runs along the rows of the nest, each row has at most
one element of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hemstitch.ir.graph import Op
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.dependence import PURE, eliminate_dead_values
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, at
from hemstitch.kernel_ir.nodes import (
    Buffer,
    Constant,
    Kernel,
    Let,
    Load,
    Loop,
    Nest,
    Position,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.kernel_ir.rewriter import Rewriter, defined, used

LEAST_EXTENT = 4  # of both axes, of any machine: a shorter diagonal gains nothing


def fill_diagonals(kernel: Kernel) -> Kernel:
    """The kernel with such results filled first; the same object if it has none. Elements of the
    diagonal are written twice, so these kernels have no non-temporal stores."""
    phases = tuple(
        replace(phase, nests=tuple(_DiagonalFill(nest).result() for nest in phase.nests))
        for phase in kernel.phases
    )
    if phases == kernel.phases:
        return kernel
    return replace(kernel, phases=phases, non_temporal=frozenset())


@dataclass(frozen=True, slots=True)
class _Diagonal:
    """`store` stores `value` where first == second + distance, else `constant`."""

    first: Axis
    second: Axis
    distance: int
    store: Store
    value: str
    constant: Constant


class _DiagonalFill:
    """One nest."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.inside = [*walk(nest.body)]
        self.loops = [s.axis for s in self.inside if isinstance(s, Loop)]
        self.definitions = {
            name: s for s in (*walk(nest.prologue), *self.inside) for name in defined(s)
        }

    def result(self) -> Nest:
        diagonal = self._diagonal() if self._is_plain() else None
        if diagonal is None:
            return self.nest
        return replace(self.nest, body=(*self._fill(diagonal), *self._diagonal_stores(diagonal)))

    def _is_plain(self) -> bool:
        """The nest is a chain of loops around one store."""
        nest = self.nest
        stores = [s for s in self.inside if isinstance(s, Store)]
        loops = [s for s in self.inside if isinstance(s, Loop)]
        loads = [s.buffer for s in self.inside if isinstance(s, Load)]
        return (
            not (nest.epilogue or nest.panels)
            and len(stores) == 1
            and all(isinstance(s, (*PURE, Loop, Store)) and _is_simple(s) for s in self.inside)
            and all(loop.between is None for loop in loops)
            and all(_size(axis) for axis in (*nest.rows, *self.loops))
            and _is_chain(nest.body, len(loops))
            and all(_step(stores[0].index, axis) > 0 for axis in self.loops)
            and all(_is_smaller(buffer, stores[0].buffer) for buffer in loads)
        )

    def _diagonal(self) -> _Diagonal | None:
        """The diagonal that the only store selects, or None."""
        (store,) = (s for s in self.inside if isinstance(s, Store))
        match self.definitions.get(store.value):
            case Let(op=Op.WHERE, operands=(condition, value, fallback)):
                compared, constant = self.definitions.get(condition), self.definitions.get(fallback)
            case _:
                return None
        if not isinstance(compared, Let) or not isinstance(constant, Constant):
            return None
        sides = [self._index(name) for name in compared.operands]
        if compared.op is not Op.EQ or sides[0] is None or sides[1] is None:
            return None
        difference = sides[0] + sides[1].scaled(-1)
        axes = {step: axis for axis, step in difference.terms if isinstance(axis, Axis)}
        if len(difference.terms) != 2 or axes.keys() != {1, -1}:
            return None
        first, second, distance = axes[1], axes[-1], difference.constant
        assert isinstance(distance, int)
        if first not in self.loops:
            first, second, distance = second, first, -distance
        is_long = min(_size(first), _size(second)) >= LEAST_EXTENT
        known = (*self.loops, *self.nest.rows)
        if first not in self.loops or second not in known or not is_long:
            return None
        return _Diagonal(first, second, -distance, store, value, constant)

    def _index(self, name: str) -> Index | None:
        """The value `name` as an affine index, or None."""
        match self.definitions.get(name):
            case Constant(value=int(value), dtype=DType.I64):
                return Index((), value)
            case Position(index=index):
                return index
            case Let(op=Op.ADD | Op.SUB as op, operands=(left, right)):
                sides = self._index(left), self._index(right)
                if sides[0] is not None and sides[1] is not None:
                    return sides[0] + sides[1].scaled(1 if op is Op.ADD else -1)
        return None

    def _fill(self, diagonal: _Diagonal) -> Iterator[Stmt]:
        """Loops that store the constant; axes that are contiguous in memory are collapsed."""
        index, size, outer = diagonal.store.index, 1, list[Axis]()
        for axis in sorted(self.loops, key=lambda axis: _step(index, axis)):
            if _step(index, axis) == size and not outer:
                size *= _size(axis)
            else:
                outer.insert(0, axis)
        whole = Axis(f"{diagonal.store.buffer.name}f", size)
        axes = [Axis(f"{axis.name}f", axis.extent) for axis in outer]
        places: dict[Variable, Index] = {axis: Index() for axis in self.loops}
        places |= zip(outer, map(at, axes))
        index = index.substitute(places) + at(whole)
        constant = replace(diagonal.constant, name=f"{diagonal.constant.name}_f")
        body = (constant, Store(diagonal.store.buffer, index, constant.name))
        yield from _nested(body, [*axes, whole], None)

    def _diagonal_stores(self, diagonal: _Diagonal) -> Iterator[Stmt]:
        """Loops along the diagonal that store its values."""
        first, second, distance = diagonal.first, diagonal.second, diagonal.distance
        low, high = max(0, -distance), min(_size(second), _size(first) - distance)
        if low >= high:
            return
        between: tuple[str, str] | None = None
        places: dict[Variable, Index]
        if second in self.loops:
            diagonal_axis = Axis(f"{second.name}d", high - low)
            places = {
                second: at(diagonal_axis).shifted(low),
                first: at(diagonal_axis).shifted(low + distance),
            }
        else:
            diagonal_axis = Axis(f"{first.name}d", _size(first))
            places = {first: at(diagonal_axis)}
            between = f"{diagonal_axis.name}from", f"{diagonal_axis.name}to"
            for name, shift in zip(between, (0, 1)):
                yield from _clamped(name, at(second).shifted(distance + shift), _size(first))
        rest = [axis for axis in self.loops if axis not in (first, second)]
        index = diagonal.store.index.substitute(places)
        axes = sorted([*rest, diagonal_axis], key=lambda axis: -_step(index, axis))
        if between is not None:
            axes = [diagonal_axis, *(axis for axis in axes if axis is not diagonal_axis)]
        names = {name: f"{name}_d" for s in self.inside for name in defined(s)}
        rewriter = Rewriter(names, lambda index: index.substitute(places))
        value = names.get(diagonal.value, diagonal.value)
        pure = [rewriter.statement(s) for s in self.inside if isinstance(s, PURE)]
        body = eliminate_dead_values([*pure, Store(diagonal.store.buffer, index, value)])
        yield from _nested(body, axes, None if between is None else {diagonal_axis: between})


def _nested(
    body: Sequence[Stmt], axes: Sequence[Axis], between: Mapping[Axis, tuple[str, str]] | None
) -> tuple[Stmt, ...]:
    """Nested loops over `axes`, the last one over lanes; each statement is in the outermost loop
    that defines its operands."""
    depths: dict[str, int] = {}
    levels: list[list[Stmt]] = [[] for _ in range(len(axes) + 1)]
    for statement in body:
        index = getattr(statement, "index", Index())
        known = [axes.index(v) + 1 for v, _ in index.terms if isinstance(v, Axis) and v in axes]
        depth = max([0, *known, *(depths.get(name, 0) for name in used(statement))])
        depths |= dict.fromkeys(defined(statement), depth)
        levels[depth].append(statement)
    inner: tuple[Stmt, ...] = tuple(levels[-1])
    for number in reversed(range(len(axes))):
        axis = axes[number]
        limits = (between or {}).get(axis)
        is_last = number == len(axes) - 1 and limits is None
        inner = (*levels[number], Loop(axis, inner, is_last, limits))
    return inner


def _clamped(name: str, index: Index, extent: int) -> Iterator[Stmt]:
    """The i64 value of `index`, clamped to [0, extent]."""
    names = [f"{name}{k}" for k in range(4)]
    yield Position(names[0], index)
    yield Constant(names[1], 0, DType.I64)
    yield Constant(names[2], extent, DType.I64)
    yield Let(names[3], Op.MAXIMUM, (names[0], names[1]), DType.I64, DType.I64)
    yield Let(name, Op.MINIMUM, (names[3], names[2]), DType.I64, DType.I64)


def _is_simple(statement: Stmt) -> bool:
    index = getattr(statement, "index", Index())
    return all(isinstance(variable, Axis | Computed) for variable, _ in index.terms)


def _is_chain(body: Iterable[Stmt], length: int) -> bool:
    """Each of `length` loops contains just the next one."""
    inside = [s for s in body if isinstance(s, Loop)]
    if length == 0 or len(inside) != 1:
        return length == 0 and not inside
    return _is_chain(inside[0].body, length - 1)


def _size(axis: Axis) -> int:
    """The extent; 0 if it is symbolic or the axis is tiled."""
    is_whole = axis.outer is None and axis.limit is None
    return axis.extent if is_whole and isinstance(axis.extent, int) else 0


def _step(index: Index, axis: Axis) -> int:
    """The stride; 0 if it is symbolic."""
    step = index.coefficient(axis)
    return step if isinstance(step, int) else 0


def _is_smaller(read: Buffer, written: Buffer) -> bool:
    """The buffers cannot be one tensor."""
    if not isinstance(read.size, int) or not isinstance(written.size, int):
        return False
    return read.role is Role.INPUT and read.size < written.size
