"""Products of few columns, of which both operands have their steps side by side: vectors run along
the steps, a sum for each row and column in registers, whose lanes are added up at the end. The left
operand, which is nearly all that is read, is read once and in the order of memory, as fast as
memory gives it; the other one stays in a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hemstitch.ir.types import DType
from hemstitch.machine.cpu_numbers import CPU
from hemstitch.targets.cpu import memory
from hemstitch.targets.cpu.emitter import Emitter, Value
from hemstitch.targets.cpu.matmul_operands import (
    MatmulTile,
    as_number,
    each_of,
    moved,
    pieces,
    plus,
    times,
)

# A vector of steps from one on, in lanes that exist, or in all: the sums as they are then.
Step = Callable[[Value | None, Value, Sequence[Value]], Sequence[Value]]

L2 = 2


def multiply(e: Emitter, product: MatmulTile) -> None:
    """Tile after tile; rows come back for more columns while they are in L1."""
    sums, columns = (24, 8) if e.features.avx512 else (12, 4)  # of 32 and of 16 registers
    columns = min(columns, as_number(product.columns) or columns, e.width)

    def rows(count: int, row: Value) -> None:
        for low, high, wide in pieces(e, product.columns, columns, 1):
            each_of(e, low, high, wide, partial(_tile, e, product, count, wide, row))

    for low, high, count in pieces(e, product.rows, min(CPU.skinny_rows, sums // columns), 1):
        each_of(e, low, high, count, partial(rows, count))


def _tile(
    e: Emitter, product: MatmulTile, rows: int, columns: int, row: Value, column: Value
) -> None:
    zero = e.i64(0)
    left = [product.left.at(e, plus(e, row, e.i64(k)), zero) for k in range(rows)]
    right = [product.right.at(e, zero, plus(e, column, e.i64(k))) for k in range(columns)]
    ahead = [moved(e, start, times(e, e.i64(rows), product.left.down)) for start in left]
    kind = DType.I32 if product.is_paired else DType.F32
    add = e.add_products if product.is_paired else e.fma

    def step(mask: Value | None, first: Value, sums: Sequence[Value]) -> Sequence[Value]:
        """A vector of steps. The tile of rows that comes next is asked for."""
        for start in ahead:
            memory.prefetch(e, DType.F32, moved(e, start, first), 0, L2)
        rows_of = [memory.load(e, kind, moved(e, start, first), 1, mask) for start in left]
        found = list(sums)
        for j, start in enumerate(right):
            other = memory.load(e, kind, moved(e, start, first), 1, mask)
            for k, one in enumerate(rows_of):
                found[k * columns + j] = add(one, other, found[k * columns + j])
        return found

    nothing = [e.constant(0.0, "float")] * (rows * columns)
    whole = _whole(e, product.steps)
    sums: Sequence[Value] = e.loop(zero, whole, e.i64(e.width), nothing, partial(step, None))
    sums = _rest(e, product.steps, sums, step)
    mask = e.mask(lane < columns for lane in range(e.width)) if columns < e.width else None
    for k in range(rows):
        total = _lanes_added_up(e, sums[k * columns : (k + 1) * columns])
        place = product.result.at(e, plus(e, row, e.i64(k)), column)
        memory.store(e, DType.F32, place, 1, total, mask)


def _whole(e: Emitter, steps: Value) -> Value:
    """As far as whole vectors reach."""
    known = as_number(steps)
    if known is None:
        return e.binary("and", steps, e.i64(-e.width))
    return e.i64(known // e.width * e.width)


def _rest(e: Emitter, steps: Value, sums: Sequence[Value], step: Step) -> Sequence[Value]:
    """What is left of the steps, in lanes that exist."""
    known, whole = as_number(steps), _whole(e, steps)
    if known is not None and known % e.width == 0:
        return sums
    if known is not None:
        return step(e.mask(lane < known % e.width for lane in range(e.width)), whole, sums)

    def masked(first: Value, carried: Sequence[Value]) -> Sequence[Value]:
        left = e.splat(e.binary("sub", steps, first))
        return step(e.compare("slt", e.lane_numbers(), left), first, carried)

    return e.loop(whole, steps, e.i64(e.width), sums, masked)


def _lanes_added_up(e: Emitter, vectors: Sequence[Value]) -> Value:
    """A vector whose lane k is the sum of the lanes of `vectors[k]`: two at a time become one, each
    the half of it, until there is one that has them all, or lanes to spare in each."""
    found, part = list(vectors), e.width
    while part > 1:
        found += [found[-1]] * (len(found) > 1 and len(found) % 2)
        pairs = list(zip(found[::2], found[1::2])) if len(found) > 1 else [(found[0], found[0])]
        found, part = [_halved(e, low, high, part) for low, high in pairs], part // 2
    return found[0]


def _halved(e: Emitter, first: Value, second: Value, part: int) -> Value:
    """Of every `part` lanes of both the upper half added to the lower: the first's, then the
    second's."""
    places = [lane for lane in range(2 * e.width) if lane % part < part // 2]
    lower, upper = (
        _picked(e, first, second, [p + distance for p in places]) for distance in (0, part // 2)
    )
    return e.binary("fadd", lower, upper)


def _picked(e: Emitter, first: Value, second: Value, places: Sequence[int]) -> Value:
    order = ", ".join(f"i32 {place}" for place in places)
    return e.define(first.type, f"shufflevector {first}, {second}, <{len(places)} x i32> <{order}>")
