"""Transpose tiles: values that are read along one axis and written along another pass through a
tile in the task's memory.

A lane loop with a large stride would load or store each lane separately. Where the loop around it
has a small stride, that axis becomes the lanes of an additional loop: one before, which fills a
tile with the loaded values, or one after, which stores the values of a tile. Only this loop
transposes, and targets do that in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from hemstitch.ir.dims import Dim
from hemstitch.ir.ops import OPS
from hemstitch.ir.types import DType
from hemstitch.kernel_ir.index import Axis, Computed, Index, Variable, at
from hemstitch.kernel_ir.nodes import (
    AccumulateInto,
    Buffer,
    Constant,
    Contract,
    Let,
    Load,
    Loop,
    Nest,
    Role,
    Stmt,
    Store,
    walk,
)
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.machine.record import Machine
from hemstitch.stitching.buffers import Buffers


@dataclass(slots=True)
class _Site:
    """A loop over `axis` around lane loops, and the loops to add before and after it."""

    axis: Axis
    tiles: dict[object, list[Buffer | None]] = field(
        default_factory=dict
    )  # by the statements that fill them
    before: list[Stmt] = field(default_factory=list)
    after: list[Stmt] = field(default_factory=list)


def with_transpose_tiles(nest: Nest, buffers: Buffers, machine: Machine) -> Nest:
    """`nest` with tiles, or the same one where none is profitable. Nests with matmuls are blocked
    later (`matmul/lowering/blocking.py`)."""
    if any(isinstance(statement, Contract) for statement in walk(nest.body)):
        return nest
    around_lanes = _around_lanes(nest)
    for start in (nest,) if around_lanes is nest else (nest, around_lanes):
        changed = _Tiler(start, buffers).run(machine)
        if changed is not start:
            return changed
    return nest


def _around_lanes(nest: Nest) -> Nest:
    """The nest with the last row axis next to the lanes: perfectly nested loops between them become
    rows."""
    rows, body, weight = nest.rows, nest.body, nest.weight
    while rows and len(body) == 1:
        loop = body[0]
        if not isinstance(loop, Loop) or loop.lanes or loop.axis.outer is not None:
            break
        extent = loop.axis.extent
        if not isinstance(weight, int) or not isinstance(extent, int) or extent == 0:
            break
        rows, body = (*rows[:-1], loop.axis, rows[-1]), loop.body
        weight = max(1, weight // extent)
    return nest if body is nest.body else replace(nest, rows=rows, body=body, weight=weight)


class _Tiler:
    """Rewrites one nest. A tile takes at most a quarter of the row buffers' budget."""

    def __init__(self, nest: Nest, buffers: Buffers) -> None:
        self.nest = nest
        self.buffers = buffers
        everything = [*walk(nest.prologue), *walk(nest.body), *walk(nest.epilogue)]
        self.constants = {s.name for s in everything if isinstance(s, Constant)}
        self.read = {s.buffer for s in everything if isinstance(s, Load | AccumulateInto)}

    def run(self, machine: Machine) -> Nest:
        nest = self.nest
        for rows, axis, index in _row_blocks(nest, machine):
            body = nest.body
            if index is not None:
                body = tuple(_substituted(statement, {nest.rows[-1]: index}) for statement in body)
            blocked = self._tiled_loop(axis, body)
            if blocked:
                weight = nest.weight * axis.extent
                why = f"{nest.why}, {axis.extent} at a time"
                return replace(nest, rows=rows, body=tuple(blocked), weight=weight, why=why)
        body = tuple(self._statements(nest.body))
        return replace(nest, body=body) if body != nest.body else nest

    def _statements(self, statements: Iterable[Stmt]) -> Iterator[Stmt]:
        for statement in statements:
            if isinstance(statement, Loop) and not statement.lanes:
                yield from self._loop(statement)
            else:
                yield statement

    def _loop(self, loop: Loop) -> list[Stmt]:
        """A serial loop with tiles; else the same loop, with those of the loops inside it."""
        inside = Loop(loop.axis, tuple(self._statements(loop.body)), lanes=False)
        return [inside] if inside != loop else self._tiled_loop(loop.axis, loop.body) or [loop]

    def _tiled_loop(self, axis: Axis, body: tuple[Stmt, ...]) -> list[Stmt]:
        """A loop over `axis` with the loops before and after it; empty if it needs no tiles."""
        site = _Site(axis)
        if (
            not isinstance(axis.extent, int)
            or axis.extent < CPU.least_transpose_tile
            or axis.outer is not None
        ):
            return []
        inside = [new for old in body for new in self._inside(site, old, ())]
        is_needed = site.before or site.after
        loop = Loop(axis, tuple(inside), lanes=False)
        return [*site.before, loop, *site.after] if is_needed else []

    def _inside(self, site: _Site, statement: Stmt, path: tuple[Axis, ...]) -> list[Stmt]:
        """The rewritten statement of the site's loop; `path`: the loops between."""
        if not isinstance(statement, Loop):
            return [statement]
        if statement.lanes:
            return [self._loads(site, statement, path)]
        if not isinstance(statement.axis.extent, int) or statement.axis.extent == 0:
            return [statement]  # a loop that never runs may have no memory to load from
        inner = (*path, statement.axis)
        body = [new for old in statement.body for new in self._inside(site, old, inner)]
        loop = Loop(statement.axis, tuple(body), lanes=False)
        return [self._stores(site, loop) if not path else loop]

    # --- loads

    def _loads(self, site: _Site, loop: Loop, path: tuple[Axis, ...]) -> Loop:
        """The lane loop, with strided loads and their arithmetic replaced by loads from tiles."""
        moved = self._moved(site, loop, path)
        if not moved:
            return self._stores(site, loop) if not path else loop
        needed = {name for s in loop.body if s not in moved for name in _operands(s)}
        tiles = dict(zip(moved, self._filled(site, loop.axis, moved, needed)))
        place = _in_tile(site.axis, loop.axis)
        body: list[Stmt] = []
        for statement in loop.body:
            tile = tiles.get(statement)
            if tile is not None:
                assert isinstance(statement, Load | Let)
                body.append(Load(statement.name, tile, place))
            elif statement not in moved:
                body.append(statement)
        tiled_loop = Loop(loop.axis, tuple(body), lanes=True)
        return self._stores(site, tiled_loop) if not path else tiled_loop

    def _filled(
        self, site: _Site, lane: Axis, moved: Sequence[Stmt], needed: set[str]
    ) -> list[Buffer | None]:
        """For each moved statement the tile of its value, if it is needed. Tiles are filled before
        the site's loop, once for all loops in it with equal statements."""
        is_needed = [getattr(statement, "name", None) in needed for statement in moved]
        numbers = {name: str(k) for k, s in enumerate(moved) if (name := getattr(s, "name", None))}
        key = (lane, tuple(_renamed(s, numbers) for s in moved), tuple(is_needed))
        if key in site.tiles:
            return site.tiles[key]
        tiles = [self._tile(site, lane) if needs_tile else None for needs_tile in is_needed]
        names = {name: self.buffers.name("v") for name in numbers}
        fill: list[Stmt] = []
        for statement, tile in zip(moved, tiles):
            fill.append(_renamed(statement, names))
            if tile is not None:
                name = names[getattr(statement, "name", "")]
                fill.append(Store(tile, _in_tile(site.axis, lane), name))
        site.before.append(_transposing_loop(lane, site.axis, fill))
        site.tiles[key] = tiles
        return tiles

    def _moved(self, site: _Site, loop: Loop, path: tuple[Axis, ...]) -> list[Stmt]:
        """Strided loads, arithmetic on them alone, and strided stores of its results."""
        if not self._fits(site.axis, loop.axis):
            return []
        names: set[str] = set()
        moved: list[Stmt] = []
        for statement in loop.body:
            match statement:
                case Load(name, buffer, index, None) if buffer.role is Role.INPUT:
                    is_moved = buffer.dtype.compute is DType.F32
                    is_moved &= self._is_transposed(
                        site, loop.axis, index, CPU.vector_strides, path
                    )
                case Let(name, _, operands, source, dtype):
                    is_moved = source.compute is dtype.compute is DType.F32
                    is_moved &= not names.isdisjoint(operands)
                    is_moved &= names | self.constants >= set(operands)
                case Store(buffer, index, name):
                    is_moved = name in names and buffer not in self.read and not path
                    is_moved &= self._is_transposed(site, loop.axis, index)
                case _:
                    continue
            if is_moved:
                moved.append(statement)
                names.add(name)
        return _without_unary_tail(moved)

    def _is_transposed(
        self,
        site: _Site,
        lane: Axis,
        index: Index,
        steps: tuple[int, ...] = (1,),
        path: tuple[Axis, ...] = (),
    ) -> bool:
        """Whether the index has a large stride along the lanes and a small one along the site's
        axis, and does not depend on `path`."""
        step, near = index.coefficient(lane), index.coefficient(site.axis)
        if not isinstance(step, int) or abs(step) < CPU.transposed_stride or near not in steps:
            return False
        return not any(isinstance(v, Computed) or v in path for v, _ in index.terms)

    # --- stores

    def _stores(self, site: _Site, loop: Loop) -> Loop:
        """A lane loop whose strided stores go to tiles, or a loop around one (`_repeated`)."""
        if not loop.lanes:
            return self._repeated(site, loop)
        body: list[Stmt] = []
        for statement in loop.body:
            if isinstance(statement, Store) and self._is_far(site, loop.axis, statement, (1,)):
                tile, name = self._tile(site, loop.axis), self.buffers.name("v")
                place = _in_tile(site.axis, loop.axis)
                out = Load(name, tile, place), replace(statement, value=name)
                site.after.append(_transposing_loop(loop.axis, site.axis, out))
                statement = Store(tile, place, statement.value)
            body.append(statement)
        return replace(loop, body=tuple(body))

    def _is_far(self, site: _Site, lane: Axis, store: Store, steps: tuple[int, ...]) -> bool:
        is_free = store.buffer not in self.read and store.buffer.dtype is DType.F32
        return (
            is_free
            and self._fits(site.axis, lane)
            and self._is_transposed(site, lane, store.index, steps)
        )

    def _repeated(self, site: _Site, loop: Loop) -> Loop:
        """Loops that end in one strided store of a value that depends only on the lanes: it goes to
        a tile once, and from there to all destinations of the loops around the lanes."""
        path: list[Axis] = []
        inner = loop
        while not inner.lanes and len(inner.body) == 1 and isinstance(inner.body[0], Loop):
            path.append(inner.axis)
            inner = inner.body[0]
        store = inner.body[-1] if inner.body else None
        if not inner.lanes or not isinstance(store, Store):
            return loop
        rest = inner.body[:-1]
        # two adjacent copies of each value, stored together
        is_doubled = path and path[-1].extent == 2 and store.index.coefficient(path[-1]) == 1
        if not self._is_far(site, inner.axis, store, (2,) if is_doubled else (1,)):
            return loop
        if not all(isinstance(s, Let | Load) and _is_free_of(s, path) for s in rest):
            return loop
        tile, name = self._tile(site, inner.axis), self.buffers.name("v")
        place = _in_tile(site.axis, inner.axis)
        out: list[Stmt] = [Load(name, tile, place), Store(store.buffer, store.index, name)]
        if is_doubled:
            out[1:] = [Loop(path.pop(), (out[1],), lanes=False)]
        emptied: Stmt = _transposing_loop(inner.axis, site.axis, out)
        for axis in reversed(path):
            emptied = Loop(axis, (emptied,), lanes=False)
        site.after.append(emptied)
        return Loop(inner.axis, (*rest, Store(tile, place, store.value)), lanes=True)

    # --- tiles

    def _fits(self, axis: Axis, lane: Axis) -> bool:
        size = _size(axis, lane)
        return isinstance(size, int) and 0 < 16 * size <= self.buffers.row_budget

    def _tile(self, site: _Site, lane: Axis) -> Buffer:
        return self.buffers.tile(_size(site.axis, lane))


def _row_blocks(
    nest: Nest, machine: Machine
) -> Iterator[tuple[tuple[Axis, ...], Axis, Index | None]]:
    """Ways to move the innermost row axis, or a block of it, into the row: (row axes, the moved
    axis, the split axis in terms of both or None). The best block sizes first."""
    if nest.epilogue or not nest.rows:  # an epilogue counts rows
        return
    *outer, last = nest.rows
    loops = [s.axis for s in walk(nest.body) if isinstance(s, Loop)]
    if not isinstance(last.extent, int) or any(axis.outer is last for axis in loops):
        return
    around = prod(a.extent if isinstance(a.extent, int) else machine.threads for a in outer)

    def use_of_lanes(size: int) -> float:
        return size / (-(-size // machine.lanes) * machine.lanes)

    sizes = [
        size
        for size in range(CPU.least_transpose_tile, min(last.extent, CPU.transpose_tile) + 1)
        if last.extent % size == 0
    ]
    for size in sorted(sizes, key=lambda size: (-use_of_lanes(size), -size)):
        blocks = last.extent // size
        if around * blocks < CPU.rows_of_a_thread * machine.threads:
            continue
        if blocks == 1:
            yield tuple(outer), last, None
        else:
            block, inner = Axis(f"{last.name}b", blocks), Axis(f"{last.name}e", size)
            yield (*outer, block), inner, at(block).scaled(size) + at(inner)


def _substituted(statement: Stmt, values: Mapping[Variable, Index]) -> Stmt:
    """The statement with axes replaced in its indices."""
    if isinstance(statement, Loop):
        body = tuple(_substituted(inner, values) for inner in statement.body)
        return replace(statement, body=body)
    indices = {name: getattr(statement, name, None) for name in ("index", "position")}
    changed: dict[str, Any] = {
        name: index.substitute(values)
        for name, index in indices.items()
        if isinstance(index, Index)
    }
    return replace(statement, **changed) if changed else statement


def _size(axis: Axis, lane: Axis) -> Dim:
    return axis.extent * lane.extent


def _in_tile(axis: Axis, lane: Axis) -> Index:
    return at(axis).scaled(lane.extent) + at(lane)


def _transposing_loop(serial: Axis, lanes: Axis, body: Iterable[Stmt]) -> Loop:
    """A serial loop around a lane loop with this body."""
    return Loop(serial, (Loop(lanes, tuple(body), lanes=True),), lanes=False)


def _without_unary_tail(moved: Sequence[Stmt]) -> list[Stmt]:
    """Without final arithmetic that derives one value from another: it costs the same after the
    tile, and loops that need either value share the tile."""
    names = {getattr(statement, "name", None) for statement in moved}
    remaining: list[Stmt] = []
    needed: set[str] = set()
    for statement in reversed(moved):
        if isinstance(statement, Let) and statement.name not in needed:
            is_unary = len(names.intersection(statement.operands)) == 1
            if is_unary and not OPS[statement.op].is_expensive:
                continue
        needed.update(_operands(statement))
        remaining.append(statement)
    return remaining[::-1]


def _operands(statement: Stmt) -> tuple[str, ...]:
    """The values that a statement uses, apart from indices."""
    match statement:
        case Let(operands=operands):
            return operands
        case Load(mask=str(mask)):
            return (mask,)
        case _:
            names = (getattr(statement, name, None) for name in ("value", "condition", "order"))
            return tuple(name for name in names if isinstance(name, str))


def _renamed(statement: Stmt, names: dict[str, str]) -> Stmt:
    match statement:
        case Load(name):
            return replace(statement, name=names[name])
        case Let(name, _, operands):
            inside = tuple(names.get(operand, operand) for operand in operands)
            return replace(statement, name=names[name], operands=inside)
        case Store(value=value):
            return replace(statement, value=names.get(value, value))
        case _:
            raise AssertionError(f"{statement} is not moved")


def _is_free_of(statement: Stmt, axes: Iterable[Axis]) -> bool:
    if not isinstance(statement, Load):
        return True
    return all(statement.index.coefficient(axis) == 0 for axis in axes)
