"""Values that are read along one axis and written along another go through a tile of the task.

A lane loop whose neighbours in memory lie far apart loads or stores each lane by itself. Where the
loop around it walks where the neighbours are near, that axis becomes the lanes of a loop of its
own: one before, which fills a tile with what would be loaded, or one after, which empties a tile
of what would be stored. Only that loop crosses the axes, and printers know how (a transposition).
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
from hemstitch.machine.record import Machine
from hemstitch.stitching.buffers import Buffers

FAR = 8  # elements: a step of the lanes from which on a tile is worth it
NEAR = (1, 2)  # elements: steps of the axis around the lanes that a processor loads as vectors
MIN_TILE, MAX_TILE = 8, 64  # iterations of that axis in one tile, to fill vectors and stay in cache
ROWS_PER_THREAD = 4  # that must be left where rows are taken together


@dataclass(slots=True)
class _Site:
    """A loop over `axis` around lane loops, and the loops that are put before and after it."""

    axis: Axis
    tiles: dict[object, list[Buffer | None]] = field(default_factory=dict)  # by what fills them
    before: list[Stmt] = field(default_factory=list)
    after: list[Stmt] = field(default_factory=list)


def tiled(nest: Nest, buffers: Buffers, machine: Machine) -> Nest:
    """The nest with tiles, or the same one where none is worth it. Rows of products go by in blocks
    of their own, later (`matmul/lowering/blocking.py`)."""
    if any(isinstance(statement, Contract) for statement in walk(nest.body)):
        return nest
    other = _around_lanes(nest)
    for start in (nest,) if other is nest else (nest, other):
        changed = _Tiler(start, buffers).run(machine)
        if changed is not start:
            return changed
    return nest


def _around_lanes(nest: Nest) -> Nest:
    """The last axis of the rows right around the lanes: loops between them, with nothing else in
    them, become rows."""
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
    """Rewrites one nest. A tile takes at most a quarter of what row buffers may."""

    def __init__(self, nest: Nest, buffers: Buffers) -> None:
        self.nest = nest
        self.buffers = buffers
        everything = [*walk(nest.prologue), *walk(nest.body), *walk(nest.epilogue)]
        self.constants = {s.name for s in everything if isinstance(s, Constant)}
        self.read = {s.buffer for s in everything if isinstance(s, Load | AccumulateInto)}

    def run(self, machine: Machine) -> Nest:
        nest = self.nest
        for rows, axis, index in _cuts(nest, machine):
            body = nest.body
            if index is not None:
                body = tuple(_substituted(statement, {nest.rows[-1]: index}) for statement in body)
            taken = self._crossed(axis, body)
            if taken:
                weight = nest.weight * axis.extent
                why = f"{nest.why}, {axis.extent} at a time"
                return replace(nest, rows=rows, body=tuple(taken), weight=weight, why=why)
        body = tuple(self._statements(nest.body))
        return replace(nest, body=body) if body != nest.body else nest

    def _statements(self, statements: Iterable[Stmt]) -> Iterator[Stmt]:
        for statement in statements:
            if isinstance(statement, Loop) and not statement.lanes:
                yield from self._loop(statement)
            else:
                yield statement

    def _loop(self, loop: Loop) -> list[Stmt]:
        """A serial loop, or what becomes of it; or else of those inside it."""
        inside = Loop(loop.axis, tuple(self._statements(loop.body)), lanes=False)
        return [inside] if inside != loop else self._crossed(loop.axis, loop.body) or [loop]

    def _crossed(self, axis: Axis, body: tuple[Stmt, ...]) -> list[Stmt]:
        """A loop over `axis` with what comes before and after it; nothing if nothing does."""
        site = _Site(axis)
        if not isinstance(axis.extent, int) or axis.extent < MIN_TILE or axis.outer is not None:
            return []
        inside = [new for old in body for new in self._inside(site, old, ())]
        is_needed = site.before or site.after
        loop = Loop(axis, tuple(inside), lanes=False)
        return [*site.before, loop, *site.after] if is_needed else []

    def _inside(self, site: _Site, statement: Stmt, path: tuple[Axis, ...]) -> list[Stmt]:
        """What is left of a statement of the site's loop, in the loops `path`."""
        if not isinstance(statement, Loop):
            return [statement]
        if statement.lanes:
            return [self._loads(site, statement, path)]
        if not isinstance(statement.axis.extent, int) or statement.axis.extent == 0:
            return [statement]  # what never runs may have no memory to load from
        inner = (*path, statement.axis)
        body = [new for old in statement.body for new in self._inside(site, old, inner)]
        loop = Loop(statement.axis, tuple(body), lanes=False)
        return [self._stores(site, loop) if not path else loop]

    # --- loads

    def _loads(self, site: _Site, loop: Loop, path: tuple[Axis, ...]) -> Loop:
        """The lane loop, its far loads (and what is made of nothing else) read from tiles."""
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
        left = Loop(loop.axis, tuple(body), lanes=True)
        return self._stores(site, left) if not path else left

    def _filled(
        self, site: _Site, lane: Axis, moved: Sequence[Stmt], needed: set[str]
    ) -> list[Buffer | None]:
        """For each moved statement the tile its value is in, if it is needed; filled before the
        site's loop, once for all loops in it that need the same."""
        is_needed = [getattr(statement, "name", None) in needed for statement in moved]
        numbers = {name: str(k) for k, s in enumerate(moved) if (name := getattr(s, "name", None))}
        key = (lane, tuple(_renamed(s, numbers) for s in moved), tuple(is_needed))
        if key in site.tiles:
            return site.tiles[key]
        tiles = [self._tile(site, lane) if wanted else None for wanted in is_needed]
        names = {name: self.buffers.name("v") for name in numbers}
        fill: list[Stmt] = []
        for statement, tile in zip(moved, tiles):
            fill.append(_renamed(statement, names))
            if tile is not None:
                name = names[getattr(statement, "name", "")]
                fill.append(Store(tile, _in_tile(site.axis, lane), name))
        site.before.append(_crossing(lane, site.axis, fill))
        site.tiles[key] = tiles
        return tiles

    def _moved(self, site: _Site, loop: Loop, path: tuple[Axis, ...]) -> list[Stmt]:
        """Far loads, arithmetic on them alone, and stores of that which are far too."""
        if not self._fits(site.axis, loop.axis):
            return []
        names: set[str] = set()
        moved: list[Stmt] = []
        for statement in loop.body:
            match statement:
                case Load(name, buffer, index, None) if buffer.role is Role.INPUT:
                    is_moved = buffer.dtype.compute is DType.F32
                    is_moved &= self._is_crossed(site, loop.axis, index, NEAR, path)
                case Let(name, _, operands, source, dtype):
                    is_moved = source.compute is dtype.compute is DType.F32
                    is_moved &= not names.isdisjoint(operands)
                    is_moved &= names | self.constants >= set(operands)
                case Store(buffer, index, name):
                    is_moved = name in names and buffer not in self.read and not path
                    is_moved &= self._is_crossed(site, loop.axis, index)
                case _:
                    continue
            if is_moved:
                moved.append(statement)
                names.add(name)
        return _with_fewer_values(moved)

    def _is_crossed(
        self,
        site: _Site,
        lane: Axis,
        index: Index,
        steps: tuple[int, ...] = (1,),
        path: tuple[Axis, ...] = (),
    ) -> bool:
        """Far along the lanes, near along the site's axis, the same in all iterations of `path`."""
        step, near = index.coefficient(lane), index.coefficient(site.axis)
        if not isinstance(step, int) or abs(step) < FAR or near not in steps:
            return False
        return not any(isinstance(v, Computed) or v in path for v, _ in index.terms)

    # --- stores

    def _stores(self, site: _Site, loop: Loop) -> Loop:
        """A lane loop whose far stores go to tiles, or a loop around one (`_repeated`)."""
        if not loop.lanes:
            return self._repeated(site, loop)
        body: list[Stmt] = []
        for statement in loop.body:
            if isinstance(statement, Store) and self._is_far(site, loop.axis, statement, (1,)):
                tile, name = self._tile(site, loop.axis), self.buffers.name("v")
                place = _in_tile(site.axis, loop.axis)
                out = Load(name, tile, place), replace(statement, value=name)
                site.after.append(_crossing(loop.axis, site.axis, out))
                statement = Store(tile, place, statement.value)
            body.append(statement)
        return replace(loop, body=tuple(body))

    def _is_far(self, site: _Site, lane: Axis, store: Store, steps: tuple[int, ...]) -> bool:
        is_free = store.buffer not in self.read and store.buffer.dtype is DType.F32
        return (
            is_free
            and self._fits(site.axis, lane)
            and self._is_crossed(site, lane, store.index, steps)
        )

    def _repeated(self, site: _Site, loop: Loop) -> Loop:
        """Loops that end in one far store of what only the lanes decide on: that goes to a tile,
        once, and from there to everywhere the loops around the lanes would have put it."""
        path: list[Axis] = []
        inner = loop
        while not inner.lanes and len(inner.body) == 1 and isinstance(inner.body[0], Loop):
            path.append(inner.axis)
            inner = inner.body[0]
        store = inner.body[-1] if inner.body else None
        if not inner.lanes or not isinstance(store, Store):
            return loop
        rest = inner.body[:-1]
        # neighbours, stored together: two of each value
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
        emptied: Stmt = _crossing(inner.axis, site.axis, out)
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


def _cuts(nest: Nest, machine: Machine) -> Iterator[tuple[tuple[Axis, ...], Axis, Index | None]]:
    """Rows without their innermost axis, or with blocks of it; the axis that is then inside a row,
    and what the whole axis is in terms of both, if it was cut. The best blocks first."""
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
        size for size in range(MIN_TILE, min(last.extent, MAX_TILE) + 1) if last.extent % size == 0
    ]
    for size in sorted(sizes, key=lambda size: (-use_of_lanes(size), -size)):
        blocks = last.extent // size
        if around * blocks < ROWS_PER_THREAD * machine.threads:
            continue
        if blocks == 1:
            yield tuple(outer), last, None
        else:
            block, inner = Axis(f"{last.name}b", blocks), Axis(f"{last.name}e", size)
            yield (*outer, block), inner, at(block).scaled(size) + at(inner)


def _substituted(statement: Stmt, values: Mapping[Variable, Index]) -> Stmt:
    """With other axes in its indices."""
    if isinstance(statement, Loop):
        body = tuple(_substituted(inner, values) for inner in statement.body)
        return replace(statement, body=body)
    found = {name: getattr(statement, name, None) for name in ("index", "position")}
    changed: dict[str, Any] = {
        name: index.substitute(values) for name, index in found.items() if isinstance(index, Index)
    }
    return replace(statement, **changed) if changed else statement


def _size(axis: Axis, lane: Axis) -> Dim:
    return axis.extent * lane.extent


def _in_tile(axis: Axis, lane: Axis) -> Index:
    return at(axis).scaled(lane.extent) + at(lane)


def _crossing(serial: Axis, lanes: Axis, body: Iterable[Stmt]) -> Loop:
    return Loop(serial, (Loop(lanes, tuple(body), lanes=True),), lanes=False)


def _with_fewer_values(moved: Sequence[Stmt]) -> list[Stmt]:
    """Without arithmetic at the end that makes one value of one: it is as cheap behind a tile, and
    loops that need either share that."""
    names = {getattr(statement, "name", None) for statement in moved}
    kept: list[Stmt] = []
    needed: set[str] = set()
    for statement in reversed(moved):
        if isinstance(statement, Let) and statement.name not in needed:
            is_of_one = len(names.intersection(statement.operands)) == 1
            if is_of_one and not OPS[statement.op].is_expensive:
                continue
        needed.update(_operands(statement))
        kept.append(statement)
    return kept[::-1]


def _operands(statement: Stmt) -> tuple[str, ...]:
    """The values that a statement uses, indices aside."""
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
