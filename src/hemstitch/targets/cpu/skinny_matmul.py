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
    loop_over,
    moved,
    pieces,
    plus,
    times,
)

# A vector of steps from one on, in lanes that exist, or in all: the sums as they are then.
Step = Callable[[Value | None, Value, Sequence[Value]], Sequence[Value]]

L2 = 2


def multiply(e: Emitter, matmul: MatmulTile) -> None:
    """Tile after tile; rows come back for more columns while they are in L1."""
    sums, columns = (24, 8) if e.features.avx512 else (12, 4)  # of 32 and of 16 registers
    columns = min(columns, as_number(matmul.columns) or columns, e.width)

    def rows(count: int, row: Value) -> None:
        for low, high, width in pieces(e, matmul.columns, columns, 1):
            loop_over(e, low, high, width, partial(_tile, e, matmul, count, width, row))

    for low, high, row_count in pieces(e, matmul.rows, min(CPU.skinny_rows, sums // columns), 1):
        loop_over(e, low, high, row_count, partial(rows, row_count))


def _tile(
    e: Emitter, matmul: MatmulTile, rows: int, columns: int, row: Value, column: Value
) -> None:
    zero = e.i64(0)
    left = [matmul.left.at(e, plus(e, row, e.i64(k)), zero) for k in range(rows)]
    right = [matmul.right.at(e, zero, plus(e, column, e.i64(k))) for k in range(columns)]
    prefetched = [moved(e, start, times(e, e.i64(rows), matmul.left.row_stride)) for start in left]
    kind = DType.I32 if matmul.is_paired else DType.F32
    add = e.dot_bf16 if matmul.is_paired else e.fma

    def step(mask: Value | None, first: Value, sums: Sequence[Value]) -> Sequence[Value]:
        """A vector of steps. The tile of rows that comes next is asked for."""
        for start in prefetched:
            memory.prefetch(e, DType.F32, moved(e, start, first), 0, L2)
        left_vectors = [memory.load(e, kind, moved(e, start, first), 1, mask) for start in left]
        new_sums = list(sums)
        for j, start in enumerate(right):
            right_vector = memory.load(e, kind, moved(e, start, first), 1, mask)
            for k, left_vector in enumerate(left_vectors):
                new_sums[k * columns + j] = add(
                    left_vector, right_vector, new_sums[k * columns + j]
                )
        return new_sums

    zeros = [e.constant(0.0, "float")] * (rows * columns)
    vector_end = _vector_end(e, matmul.k_extent)
    sums: Sequence[Value] = e.loop(zero, vector_end, e.i64(e.width), zeros, partial(step, None))
    sums = _masked_rest(e, matmul.k_extent, sums, step)
    mask = e.mask(lane < columns for lane in range(e.width)) if columns < e.width else None
    for k in range(rows):
        total = _horizontal_sums(e, sums[k * columns : (k + 1) * columns])
        place = matmul.result.at(e, plus(e, row, e.i64(k)), column)
        memory.store(e, DType.F32, place, 1, total, mask)


def _vector_end(e: Emitter, k_extent: Value) -> Value:
    """As far as whole vectors reach."""
    known = as_number(k_extent)
    if known is None:
        return e.binary("and", k_extent, e.i64(-e.width))
    return e.i64(known // e.width * e.width)


def _masked_rest(e: Emitter, k_extent: Value, sums: Sequence[Value], step: Step) -> Sequence[Value]:
    """What is left of the steps, in lanes that exist."""
    known, vector_end = as_number(k_extent), _vector_end(e, k_extent)
    if known is not None and known % e.width == 0:
        return sums
    if known is not None:
        return step(e.mask(lane < known % e.width for lane in range(e.width)), vector_end, sums)

    def masked(first: Value, carried: Sequence[Value]) -> Sequence[Value]:
        left = e.splat(e.binary("sub", k_extent, first))
        return step(e.compare("slt", e.lane_numbers(), left), first, carried)

    return e.loop(vector_end, k_extent, e.i64(e.width), sums, masked)


def _horizontal_sums(e: Emitter, vectors: Sequence[Value]) -> Value:
    """A vector whose lane k is the sum of the lanes of `vectors[k]`: two at a time become one, each
    the half of it, until there is one that has them all, or lanes to spare in each."""
    halved, width = list(vectors), e.width
    while width > 1:
        halved += [halved[-1]] * (len(halved) > 1 and len(halved) % 2)
        pairs = list(zip(halved[::2], halved[1::2])) or [(halved[0], halved[0])]
        halved, width = [_pairwise_sums(e, low, high, width) for low, high in pairs], width // 2
    return halved[0]


def _pairwise_sums(e: Emitter, first: Value, second: Value, width: int) -> Value:
    """Of every `part` lanes of both the upper half added to the lower: the first's, then the
    second's."""
    places = [lane for lane in range(2 * e.width) if lane % width < width // 2]
    lower, upper = (
        _shuffled(e, first, second, [p + distance for p in places]) for distance in (0, width // 2)
    )
    return e.binary("fadd", lower, upper)


def _shuffled(e: Emitter, first: Value, second: Value, places: Sequence[int]) -> Value:
    order = ", ".join(f"i32 {place}" for place in places)
    return e.define(first.type, f"shufflevector {first}, {second}, <{len(places)} x i32> <{order}>")
